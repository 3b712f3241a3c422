"""Tranche's MPS daemons."""
