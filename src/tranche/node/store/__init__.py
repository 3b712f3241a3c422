"""The register of a machine: its only database, and the functions that read and write it."""
