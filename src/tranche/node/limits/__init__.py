"""Memory limits of shares that the driver keeps: put in force, tried, and watched. Those of MPS are in `tranche.node.mps`."""
