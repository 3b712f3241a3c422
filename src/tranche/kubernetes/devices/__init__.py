"""The devices that a node's GPUs can be given as by claims: every placement of every profile, and what shares it."""
