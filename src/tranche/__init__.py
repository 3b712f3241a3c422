"""Tranche shares NVIDIA GPUs: it cuts them into slices and runs work in the smallest slice that fits."""
