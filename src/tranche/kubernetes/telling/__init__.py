"""What an agent reports about its whole node, for viewers of all nodes at once."""
