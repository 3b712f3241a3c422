"""Slices on Kubernetes: what one node's agent says to the API server and to the kubelet."""
