"""A user's jobs on a cluster: made from a request, listed, followed and removed, with the user's own rights.

A job is a Kubernetes Job and a template of its claim. Its labels begin with `tranche.dev/`.
"""
