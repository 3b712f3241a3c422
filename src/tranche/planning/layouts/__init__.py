"""From an observed state and a declared layout to a plan."""
