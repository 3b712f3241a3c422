"""GPUs that are cut when the machine boots, by a systemd unit, before anybody uses them."""
