"""The agent's process: it starts the parts, wires them, and says how they are."""
