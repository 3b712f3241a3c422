"""What an agent tells of its whole node, for people who look at all nodes at once."""
