"""The place of a machine's state, and how to open its files."""
