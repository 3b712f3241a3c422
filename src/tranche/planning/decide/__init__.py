"""From an observed state and a request to a decision."""
