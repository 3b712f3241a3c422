"""Resource claims as Tranche understands them: the names of the driver, requests as claims, and what a claim was given."""
