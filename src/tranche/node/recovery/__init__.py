"""What the next command puts right: interrupted plans, dead processes' shares, daemons that ended."""
