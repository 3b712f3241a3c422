"""The machine itself: the only code that talks to a driver."""
