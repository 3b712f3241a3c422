"""The page of a cluster: what it shows of all nodes, and who may see whose names."""
