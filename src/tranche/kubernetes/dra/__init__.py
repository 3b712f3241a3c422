"""A node's offer through dynamic resource allocation: its devices, published for the scheduler to choose from."""
