"""The commands of the pages that no test executes, by reason: a page, or a pattern for several, and a command's first line."""

from __future__ import annotations

from fnmatch import fnmatch

UNEXECUTED = {
    "fetches the repository and its locked dependencies, which whoever runs the tests has done": (
        ("README.md", "git clone REPOSITORY tranche"),
        ("README.md", "make -C tranche setup"),
    ),
    "needs a second machine": (("docs/guides/dashboard.md", "ssh -L 8899:127.0.0.1:8899 MACHINE"),),
    "needs podman and an image": (
        ("docs/guides/containers.md", 'eval "$(tranche hold --cdi --gpu-memory 8G)"'),
        ("docs/guides/containers.md", 'podman run --rm --device "$TRANCHE_CDI_DEVICE" IMAGE nvidia-smi -L'),
        (
            "docs/guides/containers.md",
            "tranche run --cdi --gpu-memory 8G -- sh -c 'podman run --rm --device \"$TRANCHE_CDI_DEVICE\" IMAGE python train.py'",
        ),
    ),
    "needs login sessions of systemd, and cgroup v2": (
        ("docs/guides/lab-server.md", "sudo tranche policy fence --on --exempt ann"),
        ("docs/reference/cli.md", "tranche policy fence --on --exempt ann"),
    ),
    "needs a sudo that lets a test become another user": (
        (
            "docs/guides/lab-server.md",
            "sudo tranche run --gpu-memory 10G -- sudo -u ann --preserve-env=$KEEP python train.py",
        ),
    ),
    "needs the kernel, the kubelet and the agent of a real node": (
        ("docs/runbooks/*.md", "sudo dmesg | grep -i xid"),
        ("docs/runbooks/*.md", "sudo dmesg | grep -i nvrm"),
        ("docs/runbooks/*.md", "sudo dmesg | grep -i -e xid -e nvrm"),
        ("docs/runbooks/*.md", "sudo crictl ps -a --name agent"),
        ("docs/runbooks/*.md", "ls /var/log/pods/tranche-system_*"),
        ("docs/runbooks/*.md", "journalctl -u kubelet --since -1h"),
        ("docs/runbooks/*.md", "df -h /var/lib/tranche"),
        ("docs/runbooks/*.md", "ps -eo pid,stat,wchan,args | grep '[t]ranche agent'"),
    ),
    "needs a container that was started again": (
        (
            "docs/runbooks/TrancheControllerDown.md",
            "kubectl logs -n tranche-system -l app.kubernetes.io/name=tranche-controller --previous",
        ),
    ),
    "needs a command that waits on a cluster's node; another test executes it on a machine": (
        ("docs/runbooks/TrancheRequestWaiting.md", 'kubectl exec -n tranche-system "$AGENT" -- tranche explain ID'),
    ),
    "needs a change of three nodes that is half done": (
        (
            "docs/guides/many-nodes.md",
            "kubectl get leases -n tranche-system -l tranche.dev/rollout=ticket --sort-by=.metadata.creationTimestamp",
        ),
        (
            "docs/guides/many-nodes.md",
            "kubectl annotate lease -n tranche-system tranche-layout.gpu-1 tranche.dev/go-on=yes",
        ),
    ),
    "needs an account at AWS": (
        ("docs/guides/eks.md", "eksctl create cluster --install-nvidia-plugin=false -f deploy/eks/cluster.yaml"),
        (
            "docs/guides/eks.md",
            "aws cloudformation deploy --stack-name tranche-gpu --template-file deploy/eks/cloudformation.yaml \\",
        ),
        ("docs/guides/eks.md", "REGISTRY=ACCOUNT.dkr.ecr.us-west-2.amazonaws.com"),
        ("docs/guides/eks.md", "aws ecr create-repository --region us-west-2 --repository-name tranche-agent"),
        (
            "docs/guides/eks.md",
            "aws ecr get-login-password --region us-west-2 | skopeo login --username AWS --password-stdin $REGISTRY",
        ),
        (
            "docs/guides/eks.md",
            "skopeo copy oci-archive:build/tranche-agent-0.1.0.tar docker://$REGISTRY/tranche-agent:0.1.0",
        ),
    ),
    "needs Karpenter, Kueue or the GPU Operator": (
        (
            "docs/guides/eks.md",
            "sed -e s/CLUSTER/tranche/ -e s,wheels.example.com,WHEELS, deploy/eks/karpenter.yaml | kubectl apply -f -",
        ),
        (
            "docs/guides/quotas.md",
            "tranche submit -n team-a --queue gpus --mig-profile 2g.10gb --image registry.example.com/train -- python train.py",
        ),
        (
            "docs/guides/install.md",
            "helm upgrade gpu-operator nvidia/gpu-operator --namespace gpu-operator --reuse-values \\",
        ),
    ),
    "needs an index that has the extra's dependencies": (
        ("docs/guides/install.md", "pip install './tranche_gpu-0.1.0-py3-none-manylinux_2_17_x86_64.whl[metrics]'"),
    ),
}


def reason(page: str, first_line: str) -> str | None:
    """Why no test executes the command that begins with the line; None for a command that one does."""
    for why, lines in UNEXECUTED.items():
        if any(fnmatch(page, pages) and first_line == line for pages, line in lines):
            return why
    return None
