"""One machine: observe, decide, plan, execute, verify, and record in the ledger."""
