"""Tests of the agent of one machine."""
