"""Shares in clusters without claims, by scheduling gates. Only Kubernetes before 1.34 needs it."""
