"""The commands for a person's jobs on a Kubernetes cluster."""
