"""The devices through which claims can get a node's GPUs: every placement of every profile, and every shared device."""
