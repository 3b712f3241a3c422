"""The page of a cluster: what is seen of all its nodes, and who may see whose names."""
