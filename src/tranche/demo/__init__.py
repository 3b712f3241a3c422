"""The demo: what slices are for, shown with real child processes on a simulated machine, or on the machine's own GPUs."""
