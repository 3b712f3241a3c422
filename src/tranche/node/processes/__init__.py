"""Processes of shares, as /proc shows them."""
