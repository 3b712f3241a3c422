"""What is on a GPU, and who uses it."""
