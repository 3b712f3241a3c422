"""What every process of Tranche on Kubernetes has: components that run on, pages over HTTP, a log."""
