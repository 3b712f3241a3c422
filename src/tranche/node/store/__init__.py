"""The register of a machine: the one database, and the functions that read and write it."""
