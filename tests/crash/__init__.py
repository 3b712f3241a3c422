"""Tests that kill the process in the middle of its work."""
