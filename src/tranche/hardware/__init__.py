"""What the machine is: the only code that talks to a driver, and the simulator that stands in for one."""
