"""The demo shows what slices are for: real child processes on a simulated machine, or on the machine's own GPUs."""
