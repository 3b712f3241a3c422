"""Carries plans out: guard, journal, act, verify."""
