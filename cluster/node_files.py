"""The configuration files of a node, as text: containerd, kubelet, the pods' network. Each odd setting says why it is there."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from cluster.images import PAUSE


class NodePaths:
    """The folders and files of a node, as the host sees them. Inside the node some of them lie at the usual places as well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet = folder / "kubelet"
        self.device_plugins = self.kubelet / "device-plugins"
        self.pod_resources_socket = self.kubelet / "pod-resources" / "kubelet.sock"
        self.pod_logs = folder / "log-pods"
        self.cdi = folder / "run-cdi"
        self.units = folder / "units"
        self.containerd_root = folder / "containerd-root"
        self.containerd_socket = folder / "containerd.sock"
        self.containerd_config = folder / "containerd.toml"
        self.kubelet_config = folder / "kubelet.yaml"
        self.kubeconfig = folder / "kubelet.kubeconfig"
        # What the node sees at the paths that its programs have built in.
        self.mounts = {
            "/var/lib/kubelet": self.kubelet,
            "/var/lib/cni": folder / "cni-cache",
            "/var/lib/tranche": folder / "var-lib-tranche",
            "/var/log/pods": self.pod_logs,
            "/var/log/containers": folder / "log-containers",
            "/run/containerd": folder / "run-containerd",
            "/run/cdi": self.cdi,
        }
        # What a real machine keeps in memory.
        self.lost_at_reboot = (folder / "containerd-state", folder / "run-containerd", self.cdi)


def containerd_config(paths: NodePaths, cni_folder: str) -> str:
    """containerd's configuration.

    `restrict_oom_score_adj`: without CAP_SYS_RESOURCE, as in many containers, no pod starts otherwise, and the message does not
    say why. The NRI socket has a fixed path that nodes would share.
    """
    folder = paths.folder
    unused = ("btrfs", "devmapper", "zfs", "blockfile", "erofs")
    disabled = [f"io.containerd.snapshotter.v1.{name}" for name in unused]
    return f"""\
version = 3
root = "{paths.containerd_root}"
state = "{folder}/containerd-state"
imports = []
oom_score = 0
disabled_plugins = {json.dumps(disabled)}

[grpc]
address = "{paths.containerd_socket}"

[ttrpc]
address = "{paths.containerd_socket}.ttrpc"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"

[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{folder}/registries"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
disable_hugetlb_controller = true
netns_mounts_under_state_dir = true
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/run/cdi"]

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni_folder}"]
conf_dir = "{folder}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"
stream_server_port = "0"
"""


def network_config(name: str, bridge: str, subnet: str, state: Path) -> str:
    """The pods' network: a bridge on the host. Pods of different nodes reach each other, the world does not reach them."""
    plugin = {
        "type": "bridge",
        "bridge": bridge,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(state),
            "ranges": [[{"subnet": subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "0.4.0", "name": name, "plugins": [plugin]}, indent=2) + "\n"


def kubelet_config(
    paths: NodePaths,
    *,
    authority: Path,
    cgroup: str,
    address: str,
    port: int,
    health_port: int,
    older: bool,
    gates: Collection[str],
) -> str:
    """The kubelet's configuration, in JSON, which is YAML. An `older` kubelet refuses what is about containers that crash.

    `failCgroupV1`: since 1.35 a kubelet refuses cgroup v1 without it. Image collection and eviction are all but off: an image
    that was imported cannot be pulled again, and a disk that is shared with other work is often rather full.
    """
    config: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
        "address": address,
        "port": port,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": health_port,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "maxPods": 250,
        "resolvConf": "",
        "clusterDNS": [],
        "makeIPTablesUtilChains": False,
        "volumePluginDir": str(paths.folder / "volume-plugins"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        # How soon a change of a device plugin's devices shows in the node's status.
        "nodeStatusUpdateFrequency": "1s",
        # While nothing changes; else it would be written every second, and everything that watches nodes would wake up.
        "nodeStatusReportFrequency": "5m",
    }
    if gates:
        config["featureGates"] = dict.fromkeys(gates, True)
    if not older:
        # A container that is killed again and again is started again at once; else the kubelet waits up to five minutes.
        config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "1s"}
    return json.dumps(config, indent=2) + "\n"
