"""The kubelet's protocols, and the Python made from them by `make stubs`."""
