"""The MIG manager: a node's label names a layout, and the manager cuts the node's GPUs accordingly."""
