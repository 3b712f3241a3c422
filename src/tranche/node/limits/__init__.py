"""Memory limits of shares: put in force, tried, and watched."""
