"""Files that people name: read without trust, written in one piece."""
