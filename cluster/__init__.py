"""A real Kubernetes cluster on one Linux machine, for tests and for trying things. No container registry is needed.

`python -m cluster up` starts etcd, the control plane and one or more nodes. Each node has a containerd, a kubelet, a mount
namespace, a cgroup subtree, a pod subnet and a simulated GPU machine of its own. `python -m cluster down` puts everything back.
"""
