"""The administrator's policies for sharing a machine's GPUs: one for each GPU, and a default for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tranche.core.errors import GpuNotFound, UsageError
from tranche.core.sharing import NO_SHARING, GpuPolicy, MachineSharing, Sharing
from tranche.core.state import GpuState, NodeState

_WORDS = ", ".join(GpuPolicy)


class SharingPolicy(NamedTuple):
    """`gpus` maps UUIDs to policies; `every` is the default for all other GPUs, None if unset."""

    every: GpuPolicy | None = None
    gpus: Mapping[str, GpuPolicy] = MappingProxyType({})

    def use_of(self, gpu_uuid: str) -> GpuPolicy:
        """The policy in force for that GPU."""
        return self.gpus.get(gpu_uuid, self.every or GpuPolicy.AUTO)

    def on(self, node: NodeState) -> Mapping[str, GpuPolicy]:
        """The policy of each GPU of the node that has one."""
        if self.every is None and not self.gpus:
            return {}
        return {gpu.uuid: self.use_of(gpu.uuid) for gpu in node if self.every is not None or gpu.uuid in self.gpus}

    def with_word(self, gpu_uuids: tuple[str, ...], use: GpuPolicy | None) -> SharingPolicy:
        """A copy with that policy for those GPUs, or as the default if none are named; None removes it."""
        if not gpu_uuids:
            return self._replace(every=use)
        gpus = {uuid: word for uuid, word in self.gpus.items() if uuid not in gpu_uuids}
        return self._replace(gpus=gpus if use is None else {**gpus, **dict.fromkeys(gpu_uuids, use)})


def parse_word(text: str) -> GpuPolicy:
    """Parse the value of `sharing=mig`; raises UsageError."""
    name, equals, word = text.partition("=")
    if name != "sharing" or not equals or word not in list(GpuPolicy):
        raise UsageError(f"'{text}' is not a policy", hint=f"write it as sharing=WORD, with one of {_WORDS}")
    return GpuPolicy(word)


def gpu_named(text: str, node: NodeState) -> GpuState:
    """The GPU with that index or UUID, for a lasting policy; raises GpuNotFound if there is none, or it has no UUID."""
    index = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None
    for gpu in node:
        if index == gpu.index or gpu.uuid == text:
            if gpu.nameless:
                raise GpuNotFound(
                    f"{gpu.label} is lost and has not been seen since the machine started, so its UUID is unknown",
                    hint="try again once the driver can reach it",
                )
            return gpu
    raise GpuNotFound(f"no GPU {text} on this machine", hint="list the GPUs with: tranche gpus")


_FIRST_WITH_LIMITS = (7, 0)
"""MPS limits the memory of its clients from Volta on."""


class GpuSharing(NamedTuple):
    """The administrator's policy for one GPU, and the machine's mechanisms."""

    use: GpuPolicy = GpuPolicy.AUTO
    means: MachineSharing = NO_SHARING

    def why_not(self, sharing: Sharing, gpu: GpuState) -> str:
        """Why the mechanism cannot share that GPU, in words; "" if it can."""
        capability = gpu.compute_capability
        if sharing is Sharing.MPS and capability is not None and capability < _FIRST_WITH_LIMITS:
            return f"{gpu.architecture or gpu.name} is older than Volta"
        return self.means.why_not(sharing)


NO_RULES = GpuSharing()
"""A GPU without a policy, on an unprobed machine."""
