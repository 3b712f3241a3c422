"""What the driver is told, one module for each kind of step."""
