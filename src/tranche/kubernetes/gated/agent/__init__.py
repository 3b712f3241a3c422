"""The node's part: reports the GPUs, and hands chosen shares to containers."""
