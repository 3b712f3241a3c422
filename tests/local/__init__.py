"""Tests of the front end for one machine."""
