"""What every process of Tranche on Kubernetes has: long-running components, pages over HTTP, a log."""
