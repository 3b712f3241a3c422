"""The contents and users of GPUs."""
