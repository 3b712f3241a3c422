"""Locks that end with their holder, and waiting for them."""
