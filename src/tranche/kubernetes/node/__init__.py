"""The node as its agent sees it, for every front end: its GPUs, the register of its pods, health, and who advertises."""
