"""What a node offers through dynamic resource allocation: its devices, published for the scheduler to choose from."""
