"""The error tree. Each class owns a stable reason word and an exit code; docs/reference/errors.md is made from it.

    TrancheError
    ├── UsageError                    2        the request itself is wrong
    ├── OutputUnwritable              3        stdout is closed or full
    ├── configuration            10 to 19      a file or a declared layout is wrong
    │   ├── LayoutInvalid            10
    │   ├── LayoutUnknown            11
    │   ├── LayoutImpossible         12
    │   ├── HooksInvalid             13
    │   ├── HookFailed               14
    │   ├── PlanInvalid              15
    │   ├── CheckpointInvalid        16
    │   ├── PluginConfigInvalid      17
    │   ├── PartitionInvalid         18
    │   └── PolicyInvalid            19
    ├── hardware                 20 to 29      the driver or a GPU said no
    │   ├── DriverNotFound           20
    │   ├── HardwareError            21
    │   ├── PermissionDenied         22
    │   ├── GpuNotFound              23
    │   ├── MigNotSupported          24
    │   ├── ModeChangePending        25
    │   ├── VerificationFailed       26
    │   ├── SimulatorError           27
    │   ├── MpsFailed                28        the MPS daemon of a device
    │   └── MpsPathTooLong           29
    ├── placement                30 to 39      the request cannot be served
    │   ├── ProfileUnknown           30
    │   ├── DoesNotFit               31        it fits no GPU of this machine, however empty
    │   │   └── TooManyGpus          31
    │   ├── NoRoom                   32        it would fit, but not now
    │   ├── SharingUnavailable       33
    │   ├── AllocationUnknown        34
    │   ├── MpsUserRefused           35
    │   └── NotOffered               36        it is there, and nobody is given it now
    ├── kubernetes               40 to 49      the API server or the kubelet said no
    │   ├── KubernetesUnavailable    40
    │   ├── KubernetesForbidden      41
    │   ├── KubernetesNotFound       42
    │   ├── KubernetesRejected       43
    │   ├── KubeconfigInvalid        44
    │   ├── KubeletUnavailable       45
    │   ├── CdiUnavailable           46
    │   ├── ClaimsUnavailable        47
    │   ├── JobFailed                48
    │   └── TlsUnavailable           49
    ├── drift                    50 to 59
    │   ├── LayoutMismatch           50
    │   ├── StateMoved               51
    │   └── DecisionChanged          52
    ├── ledger                   60 to 69
    │   ├── LedgerUnavailable        60
    │   ├── LedgerCorrupt            61
    │   ├── LedgerTooNew             62
    │   └── ServiceUnavailable       63
    ├── WaitTimeout                  70
    ├── safety                   80 to 89
    │   └── GpuBusy                  80
    └── CommandNotFound             127        the shell's own code

Codes from 128 on mean that a signal ended the command, as in a shell. `tranche run` returns its child's own code.
"""

from __future__ import annotations

from typing import ClassVar

from tranche.core.printable import shortened

LONGEST_TEXT = 4096


class TrancheError(Exception):
    """Root of every error that a person can meet.

    `message` says what happened and to what; `hint` says what to do next; `reason` is a stable word for programs.
    `gpu_uuid` names the GPU on which carrying out a plan failed, and is empty otherwise. What somebody wrote is named in both, so
    neither is longer than LONGEST_TEXT characters.
    """

    reason: ClassVar[str] = "Internal"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = shortened(message, LONGEST_TEXT)
        self.hint = shortened(hint, LONGEST_TEXT)
        super().__init__(self.message)
        self.gpu_uuid = ""


class UsageError(TrancheError):
    """The request is not well formed: a quantity, an option or their combination."""

    reason = "Usage"
    exit_code = 2


class OutputUnwritable(TrancheError):
    """The command cannot write its output to stdout, which is closed or on a full disk. What it has done stays done."""

    reason = "OutputUnwritable"
    exit_code = 3


class LayoutInvalid(TrancheError):
    """A layout file breaks the v1 format."""

    reason = "LayoutInvalid"
    exit_code = 10


class LayoutUnknown(TrancheError):
    """The file has no layout of that name, or a name is needed and was not given."""

    reason = "LayoutUnknown"
    exit_code = 11


class LayoutImpossible(TrancheError):
    """No set of placements on the GPU gives the declared slices."""

    reason = "LayoutImpossible"
    exit_code = 12


class HooksInvalid(TrancheError):
    """A hooks file is malformed."""

    reason = "HooksInvalid"
    exit_code = 13


class HookFailed(TrancheError):
    """A hook command could not be started or returned non-zero."""

    reason = "HookFailed"
    exit_code = 14


class PlanInvalid(TrancheError):
    """A saved plan cannot be read."""

    reason = "PlanInvalid"
    exit_code = 15


class CheckpointInvalid(TrancheError):
    """A checkpoint file cannot be read, or names GPUs that this machine does not have."""

    reason = "CheckpointInvalid"
    exit_code = 16


class PluginConfigInvalid(TrancheError):
    """The device plugin's configuration is malformed, or asks for what this version does not do."""

    reason = "PluginConfigInvalid"
    exit_code = 17


class PartitionInvalid(TrancheError):
    """The file that says what to cut at boot cannot be read, or its MIG_PARTITION is malformed."""

    reason = "PartitionInvalid"
    exit_code = 18


class PolicyInvalid(TrancheError):
    """A file that says how GPUs may be shared is malformed."""

    reason = "PolicyInvalid"
    exit_code = 19


class DriverNotFound(TrancheError):
    """There is no NVIDIA driver (NVML library) to talk to."""

    reason = "DriverNotFound"
    exit_code = 20


class HardwareError(TrancheError):
    """The driver refused or failed an operation for a reason that no other class covers."""

    reason = "HardwareError"
    exit_code = 21


class PermissionDenied(TrancheError):
    """The caller may not do this to the GPU, or may not use the state folder."""

    reason = "PermissionDenied"
    exit_code = 22


class GpuNotFound(TrancheError):
    """No GPU with that index or UUID."""

    reason = "GpuNotFound"
    exit_code = 23


class MigNotSupported(TrancheError):
    """The GPU cannot be cut into MIG instances."""

    reason = "MigNotSupported"
    exit_code = 24


class ModeChangePending(TrancheError):
    """The driver accepted a change of MIG mode, but the change did not take effect."""

    reason = "MigModeChangePending"
    exit_code = 25


class VerificationFailed(TrancheError):
    """A step reported success, but the GPU does not show its effect."""

    reason = "VerificationFailed"
    exit_code = 26


class SimulatorError(TrancheError):
    """A simulated machine could not be built, created or opened."""

    reason = "SimulatorError"
    exit_code = 27


class MpsFailed(TrancheError):
    """The MPS daemon of a device cannot be started, does not answer, or does not do what it was told."""

    reason = "MpsFailed"
    exit_code = 28


class MpsPathTooLong(TrancheError):
    """The folder of an MPS daemon's sockets has a path that is too long for a socket's name."""

    reason = "MpsPathTooLong"
    exit_code = 29


class ProfileUnknown(TrancheError):
    """No GPU of this machine offers the MIG profile."""

    reason = "ProfileNotSupported"
    exit_code = 30


class DoesNotFit(TrancheError):
    """The request is larger than any GPU of this machine."""

    reason = "MemoryTooSmall"
    exit_code = 31


class TooManyGpus(DoesNotFit):
    """The request needs more GPUs than this machine has, or than one claim can have."""

    reason = "TooManyGpus"
    exit_code = 31


class NoRoom(TrancheError):
    """The request would fit this machine, but nothing is free for it now."""

    reason = "NoRoom"
    exit_code = 32


class SharingUnavailable(TrancheError):
    """The request needs a part of a GPU, and no GPU of this machine can be shared in a way that it accepts."""

    reason = "SharingUnavailable"
    exit_code = 33


class AllocationUnknown(TrancheError):
    """No allocation of that id."""

    reason = "AllocationUnknown"
    exit_code = 34


class MpsUserRefused(TrancheError):
    """Another user's MPS daemon serves the device: it would make this user's program wait without end."""

    reason = "MpsUserRefused"
    exit_code = 35


class NotOffered(TrancheError):
    """The administrator's word, or a fault, keeps from everybody now what a scheduler chose."""

    reason = "NotOffered"
    exit_code = 36


class KubernetesUnavailable(TrancheError):
    """The Kubernetes API server cannot be reached, fails, or asks for patience."""

    reason = "KubernetesUnavailable"
    exit_code = 40


class KubernetesForbidden(TrancheError):
    """The Kubernetes API server does not know the caller, or does not allow it to do this."""

    reason = "KubernetesForbidden"
    exit_code = 41


class KubernetesNotFound(TrancheError):
    """The Kubernetes object does not exist."""

    reason = "KubernetesNotFound"
    exit_code = 42


class KubernetesRejected(TrancheError):
    """The Kubernetes API server refuses the request itself: invalid, or in conflict with what is there."""

    reason = "KubernetesRejected"
    exit_code = 43


class KubeconfigInvalid(TrancheError):
    """There is no usable kubeconfig and no usable service account of a pod, so no way to a Kubernetes API server."""

    reason = "KubeconfigInvalid"
    exit_code = 44


class KubeletUnavailable(TrancheError):
    """The kubelet of this node cannot be reached, or does not say what was asked."""

    reason = "KubeletUnavailable"
    exit_code = 45


class CdiUnavailable(TrancheError):
    """The agent cannot write the CDI specification, by which a container runtime finds devices."""

    reason = "CdiUnavailable"
    exit_code = 46


class ClaimsUnavailable(TrancheError):
    """The cluster has no dynamic resource allocation, or nothing of Tranche's that serves a resource claim."""

    reason = "ClaimsUnavailable"
    exit_code = 47


class JobFailed(TrancheError):
    """A job that was waited for has failed, or was deleted."""

    reason = "JobFailed"
    exit_code = 48


class TlsUnavailable(TrancheError):
    """The controller cannot make the certificate that it serves with."""

    reason = "TlsUnavailable"
    exit_code = 49


class LayoutMismatch(TrancheError):
    """The GPUs do not show the asserted layout."""

    reason = "LayoutMismatch"
    exit_code = 50


class StateMoved(TrancheError):
    """A saved plan was made from a state that is not the present one."""

    reason = "StateMoved"
    exit_code = 51


class DecisionChanged(TrancheError):
    """A recorded decision would turn out differently now."""

    reason = "DecisionChanged"
    exit_code = 52


class LedgerUnavailable(TrancheError):
    """The ledger cannot be opened or written: read-only folder, no space, locked."""

    reason = "LedgerUnavailable"
    exit_code = 60


class LedgerCorrupt(TrancheError):
    """The ledger file is damaged or is not a ledger."""

    reason = "LedgerCorrupt"
    exit_code = 61


class LedgerTooNew(TrancheError):
    """A newer version of Tranche wrote the ledger."""

    reason = "LedgerTooNew"
    exit_code = 62


class ServiceUnavailable(TrancheError):
    """The service of a shared machine does not answer, or ended before it gave a share."""

    reason = "ServiceUnavailable"
    exit_code = 63


class WaitTimeout(TrancheError):
    """The request did not get its share within the time given."""

    reason = "WaitTimeout"
    exit_code = 70


class GpuBusy(TrancheError):
    """The change would destroy, reset or take away something that is in use."""

    reason = "GpuBusy"
    exit_code = 80


class CommandNotFound(TrancheError):
    """The command to run does not exist or cannot be executed."""

    reason = "CommandNotFound"
    exit_code = 127


def all_errors() -> tuple[type[TrancheError], ...]:
    """Every class of the tree below the root, ordered by exit code."""

    def below(cls: type[TrancheError]) -> list[type[TrancheError]]:
        return [cls, *(sub for child in cls.__subclasses__() for sub in below(child))]

    return tuple(sorted(below(TrancheError)[1:], key=lambda cls: cls.exit_code))
