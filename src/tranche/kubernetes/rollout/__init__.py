"""How many nodes may change their layout at once, and whose turn it is."""
