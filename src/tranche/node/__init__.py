"""One machine: observe, decide, plan, execute, verify, and remember in the ledger."""
