"""The error tree. Each class owns a stable reason word and an exit code; docs/reference/errors.md is made from it.

Codes from 128 on mean that a signal ended the command, as in a shell. `tranche run` returns its child's own code.
"""

from __future__ import annotations

from typing import ClassVar

from tranche.core.printable import shortened

LONGEST_TEXT = 4096


class TrancheError(Exception):
    """Root of every error that a person can meet.

    `message` says what happened and to what; `hint` says what to do next; `reason` is a stable word for programs, the class's
    name unless it says another. `gpu_uuid` names the GPU on which carrying out a plan failed, and is empty otherwise. What
    somebody wrote is named in `message` and `hint`, so neither is longer than LONGEST_TEXT characters.
    """

    reason: ClassVar[str] = "Internal"
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, *, exit_code: int, reason: str = "") -> None:
        cls.exit_code = exit_code
        cls.reason = reason or cls.__name__

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = shortened(message, LONGEST_TEXT)
        self.hint = shortened(hint, LONGEST_TEXT)
        super().__init__(self.message)
        self.gpu_uuid = ""


class UsageError(TrancheError, exit_code=2, reason="Usage"):
    """A quantity, an option or a combination of options is invalid."""


class OutputUnwritable(TrancheError, exit_code=3):
    """The command cannot write its output, because stdout is closed or the disk is full. Changes that it has made remain."""


# 10 to 19, configuration: a file or a declared layout is wrong.


class LayoutInvalid(TrancheError, exit_code=10):
    """A layout file does not follow the v1 format."""


class LayoutUnknown(TrancheError, exit_code=11):
    """The file has no layout with that name, or it has several layouts and you selected none."""


class LayoutImpossible(TrancheError, exit_code=12):
    """The declared slices do not fit on the GPU together."""


class HooksInvalid(TrancheError, exit_code=13):
    """A hooks file is malformed."""


class HookFailed(TrancheError, exit_code=14):
    """A hook command could not be started or exited with a non-zero code."""


class PlanInvalid(TrancheError, exit_code=15):
    """A saved plan cannot be read."""


class CheckpointInvalid(TrancheError, exit_code=16):
    """A checkpoint file cannot be read, or names GPUs that this machine does not have."""


class PluginConfigInvalid(TrancheError, exit_code=17):
    """The device plugin's configuration is malformed, or has a setting that this version does not support."""


class PartitionInvalid(TrancheError, exit_code=18):
    """The file that specifies the slices to create at boot cannot be read, or its MIG_PARTITION is malformed."""


class PolicyInvalid(TrancheError, exit_code=19):
    """A policy file is malformed."""


# 20 to 29, hardware: the driver or a GPU said no.


class DriverNotFound(TrancheError, exit_code=20):
    """The machine has no NVIDIA driver (NVML library)."""


class HardwareError(TrancheError, exit_code=21):
    """A driver operation failed for a reason that no other class covers."""


class PermissionDenied(TrancheError, exit_code=22):
    """The caller does not have permission to perform the operation or to use the state folder."""


class GpuNotFound(TrancheError, exit_code=23):
    """The machine has no GPU with that index or UUID."""


class MigNotSupported(TrancheError, exit_code=24):
    """The GPU cannot be partitioned into MIG instances."""


class ModeChangePending(TrancheError, exit_code=25, reason="MigModeChangePending"):
    """The driver accepted a MIG mode change, but the change did not take effect."""


class VerificationFailed(TrancheError, exit_code=26):
    """A step reported success but had no effect on the GPU."""


class SimulatorError(TrancheError, exit_code=27):
    """A simulated machine could not be built, created or opened."""


class MpsFailed(TrancheError, exit_code=28):
    """A device's MPS daemon cannot be started, does not answer, or fails to execute a command."""


class MpsPathTooLong(TrancheError, exit_code=29):
    """The path of an MPS daemon's folder is too long for a Unix socket."""


# 30 to 39, placement: the request cannot be served.


class ProfileUnknown(TrancheError, exit_code=30, reason="ProfileNotSupported"):
    """No GPU on this machine offers the MIG profile."""


class DoesNotFit(TrancheError, exit_code=31, reason="MemoryTooSmall"):
    """The request is larger than any GPU on this machine."""


class TooManyGpus(DoesNotFit, exit_code=31):
    """The request needs more GPUs than this machine has, or than one claim can contain."""


class NoRoom(TrancheError, exit_code=32):
    """This machine can serve the request, but has no room for it now."""


class SharingUnavailable(TrancheError, exit_code=33):
    """The request needs a part of a GPU, but no GPU on this machine supports a sharing mechanism that it accepts."""


class AllocationUnknown(TrancheError, exit_code=34):
    """No allocation has that id."""


class MpsUserRefused(TrancheError, exit_code=35):
    """Another user's MPS daemon is serving the device, so this user's program would wait forever."""


class NotOffered(TrancheError, exit_code=36):
    """A cordon, a policy or a fault withholds the device that the scheduler chose."""


class QuotaExceeded(TrancheError, exit_code=37):
    """The request by itself exceeds the user's quota."""


class FenceUnavailable(TrancheError, exit_code=38):
    """The kernel cannot prevent a program from opening GPUs outside its share, or the fence does not apply to that program."""


# 40 to 49, Kubernetes: the API server or the kubelet said no.


class KubernetesUnavailable(TrancheError, exit_code=40):
    """The Kubernetes API server cannot be reached, fails, or asks the client to retry later."""


class KubernetesForbidden(TrancheError, exit_code=41):
    """The Kubernetes API server cannot identify the caller, or denies the request."""


class KubernetesNotFound(TrancheError, exit_code=42):
    """The Kubernetes object does not exist."""


class KubernetesRejected(TrancheError, exit_code=43):
    """The Kubernetes API server rejects the request, because it is invalid or conflicts with an existing object."""


class KubeconfigInvalid(TrancheError, exit_code=44):
    """Neither a kubeconfig nor a pod's service account gives access to a Kubernetes API server."""


class KubeletUnavailable(TrancheError, exit_code=45):
    """This node's kubelet cannot be reached, or gives no usable answer."""


class CdiUnavailable(TrancheError, exit_code=46):
    """Tranche cannot write the CDI specification, through which a container runtime finds devices."""


class ClaimsUnavailable(TrancheError, exit_code=47):
    """The cluster does not offer dynamic resource allocation, or Tranche does not serve resource claims there."""


class JobFailed(TrancheError, exit_code=48):
    """The job failed or was deleted while the command waited for it."""


class TlsUnavailable(TrancheError, exit_code=49):
    """The controller cannot create its TLS certificate."""


# 50 to 59, drift: something is no longer as it was.


class LayoutMismatch(TrancheError, exit_code=50):
    """The GPUs do not match the asserted layout."""


class StateMoved(TrancheError, exit_code=51):
    """A GPU has changed since the plan was saved."""


class DecisionChanged(TrancheError, exit_code=52):
    """This version would make a different decision from the recorded one."""


# 60 to 69, the ledger and the service that keeps it.


class LedgerUnavailable(TrancheError, exit_code=60):
    """The ledger cannot be opened or written: the folder is read-only, the disk is full, or the ledger is locked."""


class LedgerCorrupt(TrancheError, exit_code=61):
    """The ledger file is damaged or is not a ledger."""


class LedgerTooNew(TrancheError, exit_code=62):
    """A newer version of Tranche wrote the ledger."""


class ServiceUnavailable(TrancheError, exit_code=63):
    """The machine's service does not answer, cannot start, or ended before it granted a share."""


# 70 to 79, waiting.


class WaitTimeout(TrancheError, exit_code=70):
    """The request did not get a share, or another operation did not finish, before the timeout."""


# 80 to 89, safety.


class GpuBusy(TrancheError, exit_code=80):
    """The change would destroy, reset or take away something in use."""


# 127, the shell's own code.


class CommandNotFound(TrancheError, exit_code=127):
    """The command to run does not exist or cannot be executed."""


def all_errors() -> tuple[type[TrancheError], ...]:
    """Every class of the tree below the root, ordered by exit code."""

    def below(cls: type[TrancheError]) -> list[type[TrancheError]]:
        return [cls, *(sub for child in cls.__subclasses__() for sub in below(child))]

    return tuple(sorted(below(TrancheError)[1:], key=lambda cls: cls.exit_code))
