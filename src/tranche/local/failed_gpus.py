"""The GPUs on which a request's plan has failed: it is decided again without them, and tries them again after a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tranche.core.allocation import NodeView
from tranche.core.errors import (
    GpuBusy,
    GpuNotFound,
    HardwareError,
    LayoutImpossible,
    MigNotSupported,
    ModeChangePending,
    MpsFailed,
    NoRoom,
    TrancheError,
    VerificationFailed,
)
from tranche.core.request import Request
from tranche.core.state import GpuState
from tranche.planning.decide.allocate import Waiting
from tranche.planning.decide.obstacle import Obstacle, Reason, obstacle

# What a program outside Tranche can cause that used or cut the GPU after the decision: worth another look at the same GPU.
_DISTURBED = (GpuBusy, NoRoom, VerificationFailed)
# What a driver says of one GPU and not of all: another one may do better.
_OWN = (*_DISTURBED, GpuNotFound, HardwareError, LayoutImpossible, MigNotSupported, ModeChangePending, MpsFailed)
_LOOKS = 3
_FIRST_PAUSE_SECONDS = 60.0
_LONGEST_PAUSE_SECONDS = 3600.0


@dataclass(slots=True)
class _Failure:
    gpu: GpuState
    error: TrancheError
    looks: int = 0
    pauses: int = 0
    until: float = 0.0


class FailedGpus:
    """What one request has met on each GPU. `monotonic` is in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, GpuState] = {}
        self._failures: dict[str, _Failure] = {}

    def note(self, error: TrancheError) -> bool:
        """Whether the request may be decided again: the error was one of a GPU's own, which is left out from now on.

        A GPU that another program may have disturbed is left out after the third time. The pauses become longer, up to an hour.
        """
        gpu = self._seen.get(error.gpu_uuid)
        if gpu is None or not isinstance(error, _OWN):
            return False
        failure = self._failures.setdefault(gpu.uuid, _Failure(gpu, error))
        if failure.until > self._monotonic():
            return False  # the request was decided without it: this is the sum of what failed, not one more failure
        failure.gpu, failure.error = gpu, error
        failure.looks += 1
        if not isinstance(error, _DISTURBED) or failure.looks >= _LOOKS:
            pause = min(_FIRST_PAUSE_SECONDS * 2**failure.pauses, _LONGEST_PAUSE_SECONDS)
            failure.until = self._monotonic() + pause
            failure.pauses += 1
            failure.looks = 0
        return True

    def left_out_of(self, view: NodeView) -> NodeView:
        """The view without the GPUs that are left out now."""
        self._seen.update({gpu.uuid: gpu for gpu in view.node})
        out = {failure.gpu.uuid for failure in self._left_out()}
        if not out:
            return view
        return replace(view, node=replace(view.node, gpus=tuple(gpu for gpu in view.node if gpu.uuid not in out)))

    def explain(self, outcome: Waiting) -> Waiting:
        """The outcome with an obstacle for each GPU that is left out."""
        failed = tuple(_obstacle(failure) for failure in self._left_out())
        return replace(outcome, obstacles=(*failed, *outcome.obstacles)) if failed else outcome

    def error(self, request: Request, also: tuple[str, ...] = ()) -> TrancheError | None:
        """The error that says what happened on every GPU that is left out, and `also` about others; None when there is none."""
        failed = sorted(self._left_out(), key=lambda failure: failure.gpu.index)
        if not failed:
            return None
        first = failed[0].error
        if len(failed) == 1 and not also:
            return first
        where = "; ".join((*(str(_obstacle(failure)) for failure in failed), *also))
        return type(first)(f"{request} failed on every GPU that could serve it now: {where}", hint=first.hint)

    def _left_out(self) -> list[_Failure]:
        now = self._monotonic()
        return [failure for failure in self._failures.values() if failure.until > now]


def _obstacle(failure: _Failure) -> Obstacle:
    return obstacle(failure.gpu, Reason.DRIVER_ERROR, failure.error.message)
