"""The vocabulary of Tranche: pure data and rules.

Nothing here does I/O, reads a clock, or imports a third-party package.
"""
