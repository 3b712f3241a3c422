"""What the agent sees of its node: its object, its GPUs and slices, who holds them, and what the driver reports."""
