"""What the machine is: the only code that talks to a driver."""
