"""Tranche shares NVIDIA GPUs: it partitions them into slices and runs work in the smallest slice that fits."""
