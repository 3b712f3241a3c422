"""Memory limits that the driver enforces: set, tried, and watched. `tranche.node.mps` has those of MPS."""
