"""The node's side: reports the GPUs and hands chosen shares to containers."""
