"""The MIG manager: a node's label names a layout, and the node's GPUs come to have it."""
