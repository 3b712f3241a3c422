"""Files that users name: read without trust, written in one piece."""
