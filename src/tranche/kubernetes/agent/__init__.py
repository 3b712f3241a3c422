"""The agent's process: starts and wires the parts, and reports their state."""
