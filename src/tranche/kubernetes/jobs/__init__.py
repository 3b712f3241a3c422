"""A person's jobs on a cluster: made from a request, listed, followed and removed, with the person's own rights.

A job is a Kubernetes Job with a template of its claim, and nothing else. Its labels begin with `tranche.dev/`.
"""
