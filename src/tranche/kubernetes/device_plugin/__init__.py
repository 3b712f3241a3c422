"""The kubelet's device plugin API: GPUs and slices as extended resources."""
