"""The informer's core, and that it converges whatever its source does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tranche.core.errors import KubernetesForbidden, KubernetesUnavailable
from tranche.kubernetes.api.connection import ApiConnection
from tranche.kubernetes.api.informer import ObjectList, ObjectSource, WatchEvent, WatchEventType, after
from tranche.kubernetes.api.kubeconfig import ApiServer


def test_events_add_change_and_remove() -> None:
    known: ObjectList[str] = ObjectList("1")
    known = after(known, WatchEvent(WatchEventType.ADDED, "2", "a", "x")) or known
    known = after(known, WatchEvent(WatchEventType.MODIFIED, "3", "a", "y")) or known
    assert known == ObjectList("3", {"a": "y"})
    assert after(known, WatchEvent(WatchEventType.DELETED, "4", "a")) == ObjectList("4", {})


def test_a_bookmark_moves_the_version_only() -> None:
    known = ObjectList("3", {"a": "y"})
    assert after(known, WatchEvent(WatchEventType.BOOKMARK, "9")) == ObjectList("9", {"a": "y"})


def test_an_accepted_watch_changes_nothing_and_an_expiry_forgets_everything() -> None:
    known = ObjectList("3", {"a": "y"})
    assert after(known, WatchEvent(WatchEventType.OPENED)) is known
    assert after(known, WatchEvent(WatchEventType.EXPIRED)) is None


@dataclass(frozen=True)
class Put:
    """The world changes: the object gets that content, or goes when it is empty."""

    key: str
    content: str


@dataclass(frozen=True)
class Trouble:
    """What the source does instead of its work."""

    kind: str


STEPS = st.lists(
    st.one_of(
        st.builds(Put, st.sampled_from("ab"), st.sampled_from(["", "x", "y"])),
        st.builds(Trouble, st.sampled_from(["break", "end", "expire", "forbid", "unavailable", "open"])),
    ),
    max_size=30,
)


@dataclass(frozen=True)
class ScriptedSource(ObjectSource[str]):
    """A source whose world and troubles follow a script, one step at each of its moves."""

    script: list[Put | Trouble] = field(default_factory=list)
    world: dict[str, str] = field(default_factory=dict)
    history: list[WatchEvent[str]] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)

    async def list(self) -> ObjectList[str]:
        self._suffer(self._advance())
        return ObjectList(str(len(self.history)), dict(self.world))

    async def watch(self, resource_version: str) -> AsyncGenerator[WatchEvent[str], None]:
        seen = int(resource_version)
        if seen < max(self.expired, default=0):
            yield WatchEvent(WatchEventType.EXPIRED)
            return
        yield WatchEvent(WatchEventType.OPENED)
        while True:
            trouble = self._advance()
            for event in self.history[seen:]:
                yield event
            seen = len(self.history)
            if trouble == "end":
                return
            if trouble == "expire":
                self.expired.append(len(self.history))
                return
            if trouble == "break":
                raise KubernetesUnavailable("broken")
            self._suffer(trouble)
            if not self.script:
                raise asyncio.CancelledError

    def _advance(self) -> str:
        if not self.script:
            return ""
        step = self.script.pop(0)
        if isinstance(step, Trouble):
            return step.kind
        happening = WatchEventType.MODIFIED if step.key in self.world else WatchEventType.ADDED
        content = f"{step.key}: {step.content}"
        if step.content:
            self.world[step.key] = content
        elif self.world.pop(step.key, None) is None:
            return ""
        else:
            happening = WatchEventType.DELETED
        version = str(len(self.history) + 1)
        self.history.append(WatchEvent(happening, version, step.key, content if step.content else None))
        return ""

    def _suffer(self, trouble: str) -> None:
        if trouble == "forbid":
            raise KubernetesForbidden("no")
        if trouble == "unavailable":
            raise KubernetesUnavailable("busy")


@given(STEPS)
def test_whatever_happens_the_last_snapshot_is_the_world(script: list[Put | Trouble]) -> None:
    pauses: list[float] = []
    troubles: list[str] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    connection = ApiConnection(ApiServer("http://no-server"), random=lambda: 0.0, sleep=pause)
    source = ScriptedSource(connection, "things", "/things", {}, str, script=list(script))

    async def follow() -> list[tuple[str, ...]]:
        shown: list[tuple[str, ...]] = []
        try:
            async for items in source.snapshots(troubles.append):
                shown.append(tuple(sorted(items)))
        except asyncio.CancelledError:
            pass
        return shown

    shown = asyncio.run(follow())
    assert shown[-1] == tuple(sorted(source.world.values()))
    assert all(one != other for one, other in pairwise(shown)), "only changes are shown"
    assert troubles[-1] == "", "the last listing succeeded"
    assert set(troubles) <= {"", "no", "busy"}
    assert all(0 < seconds <= 30 for seconds in pauses), "never without a pause, never longer than half a minute"


@given(random=st.floats(0, 1))
def test_pauses_double_up_to_the_longest_and_are_shortened_by_at_most_half(random: float) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    script: list[Put | Trouble] = [
        *[Trouble("unavailable")] * 8,
        Trouble("open"),
        Trouble("break"),
        Trouble("unavailable"),
    ]
    connection = ApiConnection(ApiServer("http://no-server"), random=lambda: random, sleep=pause)
    source = ScriptedSource(connection, "things", "/things", {}, str, script=script)

    async def follow() -> None:
        with suppress(asyncio.CancelledError):
            async for _ in source.snapshots():
                pass

    asyncio.run(follow())
    wholes = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 0.5, 1.0]
    assert all(whole / 2 <= seconds <= whole for seconds, whole in zip(pauses, wholes, strict=True))
