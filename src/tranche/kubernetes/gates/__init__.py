"""Shares in clusters without claims: a controller chooses for pods that wait at a scheduling gate, the agent hands over."""
