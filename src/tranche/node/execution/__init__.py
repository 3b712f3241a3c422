"""Carries out plans: guard, journal, act, verify."""
