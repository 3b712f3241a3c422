"""Shares in clusters without claims, by scheduling gates. Kubernetes before 1.34 needs it, and nothing else does."""
