"""The GPUs of a whole cluster, as anyone may read them: what nodes offer to claims, who has what, and why a pod waits.

`reading` asks the API server; the rest is pure.
"""
