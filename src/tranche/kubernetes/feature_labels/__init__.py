"""The labels by which workloads find nodes with the right GPUs."""
