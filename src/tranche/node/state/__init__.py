"""Where a machine's state is kept, and how its files are opened."""
