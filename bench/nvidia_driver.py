"""NVIDIA's driver for claims, to measure beside it: built once from its published module, and run on a node of the test cluster.

`go/go.mod` pins it. It runs as it is released, on the simulated machine's NVML and the files around it. Its containers get device
files that lead nowhere, and its hooks do nothing.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.claims import devices_published
from cluster.cluster import Cluster
from cluster.kits import build
from cluster.node import Node
from cluster.units import Unit
from cluster.waiting import wait_for
from release.go_build import GoModule

from tranche_simulator.build import cache_directory, ensure_built

DRIVER = "gpu.nvidia.com"
DEVICE_CLASS = "mig.nvidia.com"
GO_MODULE = GoModule(Path(__file__).parent / "go")
_PATH = "sigs.k8s.io/dra-driver-nvidia-gpu"
_TRANCHE = str(Path(sys.executable).with_name("tranche"))
_SHARED_FILES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_NULL = os.makedev(1, 3)


def pinned_version() -> str:
    """The release that is built, such as v0.4.1."""
    return GO_MODULE.versions[_PATH]


def ensure_driver(say: Callable[[str], None]) -> Path:
    """The driver's program, which is built if it is not there: about two minutes of processor time.

    Raises:
        UnsuitableMachine: there is no Go, or no C compiler.
        ClusterError: a module cannot be fetched or compiled.
    """
    target = cache_directory() / "cluster" / f"nvidia-driver-{GO_MODULE.pins}"
    if not target.is_file():
        programs = {target.name: f"{_PATH}/cmd/gpu-kubelet-plugin"}
        build(GO_MODULE, programs, target.parent, f"NVIDIA's driver {pinned_version()}", say, cgo=True)
    return target


@contextmanager
def nvidia_driver_on(cluster: Cluster, node: Node, program: Path, devices: int, *options: str) -> Iterator[Unit]:
    """Run it on a node whose GPUs are in MIG mode, once it shows so many devices or more; it is ended with the block."""
    root = _driver_root(cluster, node)
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"}}
    cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": DEVICE_CLASS},
            "spec": {"selectors": [selector]},
        }
    )
    command = [_TRANCHE, "sim", "exec", node.name, "--", str(program), *_options(cluster, node, root), *options]
    environment = {**node.environment(), "TRANCHE_SIM_ROOT": str(cluster.folder / "machines")}
    unit = node.start_program("nvidia-driver", command, environment)
    try:
        wait_for(
            "NVIDIA's driver shows its devices",
            lambda: len(devices_published(cluster, node)) >= devices,
            explain=unit.log_end,
        )
        yield unit
    finally:
        unit.stop()


def _options(cluster: Cluster, node: Node, root: Path) -> tuple[str, ...]:
    return (
        f"--kubeconfig={cluster.kubeconfig}",
        f"--node-name={node.name}",
        "--cdi-root=/run/cdi",
        f"--nvidia-driver-root={root}",
        f"--container-driver-root={root}",
        "--nvidia-cdi-hook-path=/bin/true",
        "--image-name=none",
        "--feature-gates=DynamicMIG=true",
        "-v=4",
    )


def _driver_root(cluster: Cluster, node: Node) -> Path:
    """A folder with libraries, nvidia-smi and device files where the driver looks for those of an installation."""
    built = ensure_built()
    root = cluster.folder / "nvidia-driver"
    libraries, programs, devices = root / "usr" / "lib64", root / "usr" / "bin", root / "dev"
    for folder in (libraries, programs, devices):
        folder.mkdir(parents=True, exist_ok=True)
    for library in built.library.parent.iterdir():
        shutil.copy(library, libraries)
        shutil.copy(library, libraries / f"{library.name.removesuffix('.1')}.{node.machine.driver}")
    shutil.copy(built.nvidia_smi, programs)
    for name in (*(f"nvidia{gpu.index}" for gpu in node.machine.gpus()), *_SHARED_FILES):
        if not (devices / name).exists():
            os.mknod(devices / name, stat.S_IFCHR | 0o666, _NULL)
    return root
