"""What the next command repairs: interrupted plans, shares of dead processes, ended daemons."""
