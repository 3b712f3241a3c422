"""The service of a shared machine: gets shares for users who may not change the machine themselves.

The listener reads one request of each connection and forks a process for it, which works as `tranche run` does: it waits in the
queue, cuts, watches the share and gives it back. The command itself is a child of the client. Root executes nothing of a user's.
So the listener, a request's process and a client can each be killed without ending another's command.
"""

from __future__ import annotations

import array
import fcntl
import json
import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tranche.core.allocation import NodeView
from tranche.core.errors import FenceUnavailable, NoRoom, PermissionDenied, ServiceUnavailable, TrancheError, UsageError
from tranche.core.printable import one_line
from tranche.hardware.process_stat import PROC, process_environment
from tranche.local.client_workload import (
    CLIENT_GONE,
    ClientProcess,
    ClientWorkload,
    method_of,
    parse_extension,
    parse_run,
)
from tranche.local.queue import Queue
from tranche.local.run import RunRequest, run
from tranche.local.run_report import RunReporter
from tranche.local.time_limit import end_overdue, extend, overdue
from tranche.node.host import Host
from tranche.node.limits.share_groups import ShareGroupManager
from tranche.node.locks.interrupts import ENDING
from tranche.node.locks.locks import FileLock
from tranche.node.mps.mps_records import IDLE_SECONDS
from tranche.node.processes.processes import MARK, process_at
from tranche.node.state.connection import ServiceConnection
from tranche.node.state.session import StateFolder, boot_clock
from tranche.node.store import records, register
from tranche.node.store.ledger import Ledger, content_for_users
from tranche.node.store.register import user_name
from tranche.planning.decide.time_limits import GRACE_SECONDS

_NS_GET_PARENT = 0xB702
_NS_GET_OWNER_UID = 0xB704
MOST_OF_A_USER = 80
"""Connections of one user at a time. More of them than runs, so that a user with all their runs can list and release them."""
MOST_RUNS_OF_A_USER = 64
MOST_OF_ALL = 1024
_SPEAKS_WITHIN_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 10.0
_CLEARS_WITHIN_SECONDS = 2.0
_ORDER_SECONDS = 60.0
_MARK = f"{MARK}=".encode()

OpenHost = Callable[[int], AbstractContextManager[Host]]
Log = Callable[[str], None]


@dataclass(slots=True)
class RunService:
    """The listener, which holds `lock`. `open_host` opens the machine for a user, in a request's process.

    `environment` locates a simulated machine.
    """

    listener: socket.socket
    lock: FileLock
    ledger: Path
    open_host: OpenHost
    log: Log
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _silent: dict[int, tuple[ServiceConnection, ClientProcess, float]] = field(default_factory=dict)
    _served: dict[int, ClientProcess] = field(default_factory=dict)
    _tidy_at: float = math.inf
    """When to end what shares have left, such as an MPS daemon that is no longer needed; by the monotonic clock."""
    _look_at: float = 0.0
    _tidying: int = 0
    """The process that puts the machine in order now, 0 for none."""

    def serve(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP; requests that have begun go on without the listener.

        Raises ServiceUnavailable when the socket's file was removed or replaced: nobody reaches this service any more.
        """
        here = _file_at(self.listener.getsockname())
        with _signals_wake() as woken, selectors.DefaultSelector() as selector:
            self.listener.setblocking(False)
            selector.register(self.listener, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(self._patience())}
                if woken in ready and set(ENDING) & set(os.read(woken, 4096)):
                    return
                self._reap()
                for descriptor in ready & set(self._silent):
                    self._hear(selector, descriptor)
                self._drop_late(selector)
                if time.monotonic() >= self._tidy_at or (self._look_due() and self._anything_due()):
                    self._tidy(selector)
                if _file_at(self.listener.getsockname()) != here:
                    raise ServiceUnavailable(
                        f"{self.listener.getsockname()} was removed or replaced, so users cannot reach this service",
                        hint="start the service again",
                    )
                if self.listener.fileno() in ready:
                    self._accept(selector)

    def _look_due(self) -> bool:
        """Whether to look now for what nobody else does."""
        if due := time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
        return due

    def _patience(self) -> float:
        now = time.monotonic()
        begun = min((since for _, _, since in self._silent.values()), default=now + _LOOK_SECONDS)
        due = min(begun + _SPEAKS_WITHIN_SECONDS, self._tidy_at, self._look_at)
        return min(_LOOK_SECONDS, max(0.0, due - now))

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            accepted, _ = self.listener.accept()
        except OSError as error:  # no more files, or the client has left already
            self.log(f"cannot accept a connection: {error.strerror}")
            time.sleep(_PAUSE_SECONDS)
            return
        connection = ServiceConnection(accepted)
        pid, uid = connection.peer()
        try:
            peer = self._admit(pid, uid)
        except TrancheError as error:
            self.log(f"{user_name(uid)} (uid {uid}, pid {pid}): refused: {error.message}")
            send_error(connection, error)
            connection.close()
            return
        except OSError:  # it has ended already
            connection.close()
            return
        self._silent[connection.fileno()] = (connection, peer, time.monotonic())
        selector.register(connection.fileno(), selectors.EVENT_READ)

    def _admit(self, pid: int, uid: int) -> ClientProcess:
        """The client, or the error that refuses it. OSError if it has ended."""
        users = [*(peer.uid for _, peer, _ in self._silent.values()), *(peer.uid for peer in self._served.values())]
        if not pid or not _same_pids(pid):
            raise PermissionDenied(
                "the service cannot see this process, which is in another PID namespace",
                hint="run the command on the machine itself, outside any container",
            )
        if not _is_the_namespaces_user(pid, uid):
            raise PermissionDenied(
                f"uid {uid} is a subordinate uid, which a user namespace lends to its user",
                hint="run the command outside the user namespace",
            )
        if os.geteuid() not in (0, uid):
            raise PermissionDenied(
                f"the service runs as {user_name(os.geteuid())} and serves no other user",
                hint="ask an administrator to run it as root",
            )
        if uid and users.count(uid) >= MOST_OF_A_USER:
            raise NoRoom(
                f"{user_name(uid)} already has {MOST_OF_A_USER} connections, the most that one user can have",
                hint="wait until one of them ends; list them with: tranche ps",
            )
        if len(users) >= MOST_OF_ALL:
            raise NoRoom(
                f"the service already has {MOST_OF_ALL} requests",
                hint="try again later; list the requests with: tranche ps",
            )
        peer = ClientProcess(pid, uid, os.pidfd_open(pid))
        found = process_at(pid)
        if found is None or found.uid != uid:  # ended, and its pid may be another's already
            os.close(peer.handle)
            raise ProcessLookupError
        return peer

    def _close(self, connection: ServiceConnection, peer: ClientProcess) -> None:
        connection.close()
        os.close(peer.handle)

    def _hear(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        """Read the request of that connection, and let a process of its own answer it."""
        selector.unregister(descriptor)
        connection, peer, _ = self._silent.pop(descriptor)
        try:
            pid = os.fork()
        except OSError as error:
            self.log(f"{peer}: refused: cannot start a process: {error.strerror}")
            send_error(connection, NoRoom("the machine cannot start another process", hint="try again later"))
        else:
            if pid == 0:
                runs = sum(each.uid == peer.uid for each in self._served.values())
                full = peer.uid != 0 and runs >= MOST_RUNS_OF_A_USER
                self._work_and_exit(str(peer), selector, lambda: answer(connection, peer, self, full=full))
            self._served[pid] = peer
        self._close(connection, peer)

    def _tidy(self, selector: selectors.BaseSelector) -> None:
        """Let a process of its own put the machine in order; without one, the next request does."""
        self._tidy_at = math.inf
        if self._tidying:
            return
        with suppress(OSError):
            self._tidying = os.fork()
            if self._tidying == 0:
                self._work_and_exit("cleaning up", selector, self._put_in_order)

    def _put_in_order(self) -> None:
        with self.open_host(os.getuid()) as host:
            host.view(seconds=_ORDER_SECONDS, thorough=True)
            from tranche.node.fence import tend  # slow to import

            try:
                tend(host)
            except FenceUnavailable as error:
                with host.ledger.read() as db:
                    fenced = records.fence(db) is not None
                if fenced:
                    self.log(f"the fence is not in effect: {error.message}; {error.hint}")
            end_overdue(host, grace=GRACE_SECONDS)

    def _anything_due(self) -> bool:
        """Whether a command is overdue, a reservation over, the ledger new, or the fence not as it should be."""
        with suppress(TrancheError), closing(Ledger(self.ledger)) as ledger, ledger.read() as db:
            allocations = register.allocations(db)
            if overdue(allocations, boot_clock(), time.time()) or register.reservations_due(db, time.time()):
                return True
            if register.is_new(db):
                return True
            if os.geteuid() == 0:
                from tranche.node.fence import fence_now

                places = StateFolder(self.ledger.parent)
                report = fence_now(records.fence(db), allocations, ShareGroupManager(places), self.environment)
                waits = report.exempt is not None and report.unfenced and not report.confined
                return report.due or (bool(waits) and bool(register.anything_left(db, places)))
        return False

    def _work_and_exit(self, who: str, selector: selectors.BaseSelector, work: Callable[[], None]) -> None:
        """In a process that was just forked, do the work and end."""
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (*ENDING, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            selector.close()
            self.listener.close()
            self.lock.release()  # the listener's next run must not wait for this process
            for each, other, _ in self._silent.values():
                self._close(each, other)
            work()
            code = 0
        except BaseException as error:
            self.log(f"{who}: the process failed: {error!r}")
        finally:
            os._exit(code)

    def _drop_late(self, selector: selectors.BaseSelector) -> None:
        """Close connections whose clients have said nothing for too long."""
        now = time.monotonic()
        for descriptor, (connection, peer, since) in list(self._silent.items()):
            if now - since >= _SPEAKS_WITHIN_SECONDS:
                self.log(f"{peer}: connected, but sent no request")
                selector.unregister(descriptor)
                del self._silent[descriptor]
                self._close(connection, peer)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                peer = self._served.pop(ended[0], None)
                self._tidying = 0 if ended[0] == self._tidying else self._tidying
                if peer is not None:
                    self._tidy_at = time.monotonic() + IDLE_SECONDS + _LOOK_SECONDS
                if ended[1] and peer is not None:
                    self.log(f"{peer}: the request's process ended with {os.waitstatus_to_exitcode(ended[1])}")


def _same_pids(pid: int) -> bool:
    """Whether the process is in this one's PID namespace, so that the pids it names mean the same here."""
    try:
        return os.readlink(PROC / str(pid) / "ns" / "pid") == os.readlink(PROC / "self" / "ns" / "pid")
    except PermissionError:
        return True  # the pid of its command will tell


def _is_the_namespaces_user(pid: int, uid: int) -> bool:
    """Whether a process in a user namespace has the uid of the user who made the namespace.

    Others of its uids are lent: /etc/subuid gives each user thousands, and a limit for each user would limit nobody.
    A process of this process's own namespace has its own uid. The requests are those of ioctl_ns(2).
    """
    if not (PROC / "self" / "ns" / "user").exists():
        return True  # the kernel has no user namespaces
    maker = array.array("I", [0])
    try:
        with ExitStack() as stack:

            def kept(descriptor: int) -> int:
                stack.callback(os.close, descriptor)
                return descriptor

            own = kept(os.open(PROC / "self" / "ns" / "user", os.O_RDONLY))
            inner = kept(os.open(PROC / str(pid) / "ns" / "user", os.O_RDONLY))
            if os.path.sameopenfile(own, inner):
                return True
            while not os.path.sameopenfile(own, parent := kept(fcntl.ioctl(inner, _NS_GET_PARENT))):
                inner = parent
            fcntl.ioctl(inner, _NS_GET_OWNER_UID, maker)
    except PermissionError:  # another user's process, or a namespace outside this one
        return os.geteuid() == uid
    return maker[0] == uid


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file that is; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _signals_wake() -> Iterator[int]:
    """A pipe that receives the number of each signal that the listener waits for."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    numbers = [number for number in (*ENDING, signal.SIGCHLD) if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    handlers = [(number, signal.signal(number, lambda number, frame: None)) for number in numbers]
    try:
        yield reading
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def answer(connection: ServiceConnection, peer: ClientProcess, service: RunService, *, full: bool) -> None:
    """Serve one client in this process, which then ends. A user with a `full` number of runs may still read the ledger."""

    def tell(event: str) -> Callable[[str], None]:
        def send(text: str) -> None:
            service.log(f"{peer}: {one_line(text)}")
            connection.send({"event": event, "text": text})

        return send

    try:
        received = connection.receive(wait=False)
        if received is None:
            return
        message, files = received
        for each in files:
            os.close(each)
        method = method_of(message)
        if method == "ledger":
            _clear(service)
            _send_ledger(connection, service.ledger)
            return
        if method == "node":
            _send_node(connection, service, peer.uid)
            return
        if method == "extend":
            allocation_id, seconds = parse_extension(message)
            with service.open_host(peer.uid) as host:
                tell("note")(extend(host, allocation_id, seconds, peer.uid))
            connection.send({"event": "over", "code": 0})
            return
        if full:
            raise NoRoom(
                f"{user_name(peer.uid)} already has {MOST_RUNS_OF_A_USER} runs, the most that one user can have",
                hint="wait until one of them ends; list them with: tranche ps",
            )
        asked, command, patience, cdi = parse_run(message)
        connection.send({"event": "accepted"})
        workload = ClientWorkload(connection, peer, command)
        with service.open_host(peer.uid) as host, workload.waiting():
            _refuse_inside_share(host, peer)
            service.log(f"{peer}: asks for {asked}: {one_line(command)}")
            request = RunRequest(request=asked, workload=workload, patience=patience, cdi=cdi)
            code, preempted = run(host, request, RunReporter(tell("note"), tell("warning")))
        gone = ", or the client has gone" if code == CLIENT_GONE else ""
        service.log(f"{peer}: ended, exit code {code}{gone}")
        connection.send({"event": "over", "code": code, "preempted": preempted})
    except TrancheError as error:
        service.log(f"{peer}: refused: {one_line(error.message)}")
        send_error(connection, error)


def send_error(connection: ServiceConnection, error: TrancheError) -> None:
    """Tell the client why it gets nothing."""
    connection.send({"event": "error", "reason": error.reason, "message": error.message, "hint": error.hint})


def _clear(service: RunService) -> None:
    """Clear what dead processes left, as root's commands do before they list; a failure leaves it to the next decision."""
    try:
        with closing(Ledger(service.ledger)) as ledger, ledger.read() as db:
            left = register.is_new(db) or register.anything_left(db, StateFolder(service.ledger.parent))
        if left:
            with service.open_host(os.getuid()) as host:
                host.view(seconds=_CLEARS_WITHIN_SECONDS)
                Queue(host).ring_next()
    except TrancheError:
        pass
    except Exception as error:  # whoever asks for the ledger gets it nevertheless
        service.log(f"cannot clear what dead processes left: {error!r}")


def _send_ledger(connection: ServiceConnection, ledger: Path) -> None:
    """Send a copy, which the client cannot lock against others."""
    with ExitStack() as stack:
        files = [stack.enter_context(open(os.memfd_create(f"tranche-{name}"), "wb")) for name in ("ledger", "log")]
        for file, content in zip(files, content_for_users(ledger), strict=True):
            file.write(content)
            file.seek(0)
        connection.send({"event": "ledger"}, [file.fileno() for file in files])


def _send_node(connection: ServiceConnection, service: RunService, uid: int) -> None:
    """Send what the driver shows, if a fence hides GPUs from the client; else the client looks itself."""
    with closing(Ledger(service.ledger)) as ledger, ledger.read() as db:
        fenced = records.fence(db) is not None
    if not fenced:
        connection.send({"event": "node"})
        return
    from tranche.planning.decide.recording import view_to_dict

    with service.open_host(uid) as host, open(os.memfd_create("tranche-node"), "w+b") as file:
        file.write(json.dumps(view_to_dict(NodeView(host.driver.observe()))).encode())
        file.flush()
        file.seek(0)
        connection.send({"event": "node"}, [file.fileno()])


def _refuse_inside_share(host: Host, peer: ClientProcess) -> None:
    """UsageError for a client that runs in a share: it has that share, and gets no other."""
    try:
        environment = process_environment(peer.pid)
    except OSError:
        return  # the client has ended, which its connection tells
    marks = {each.partition(b"=")[2].decode(errors="replace") for each in environment if each.startswith(_MARK)}
    with host.ledger.read() as db:
        allocations = register.allocations(db)
    groups = set(host.share_groups.around(peer.pid))
    found = [each.id for each in allocations if each.id in marks or each.id in groups]
    if found:
        raise UsageError(
            f"this process is running inside share {found[0]}, and Tranche does not change the machine from inside a share",
            hint="run this outside the share; inside it, start commands without tranche",
        )
