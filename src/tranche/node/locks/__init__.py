"""Locks that end with their holder, and how to wait for them."""
