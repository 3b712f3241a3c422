"""Cuts GPUs when the machine boots, by a systemd unit, before any program uses them."""
