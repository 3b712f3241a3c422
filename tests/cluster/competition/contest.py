"""The contest: random actions of everybody who competes for one node, and the looks that follow each of them."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cluster.cluster import Cluster
from cluster.errors import ClusterError
from cluster.node import Node
from cluster.node_layouts import condition, label, labels, node_object
from cluster.waiting import wait_for

from tests.cluster.competition import promises, strategies
from tests.cluster.competition.outages import PARTS, Outages
from tests.cluster.competition.pods import SCRIPTS, Pods
from tests.cluster.competition.runs import COMMANDS, REQUESTS, TRANCHE, Runs
from tests.cluster.competition.witness import Holding, Witness, holdings, start_of

LAYOUTS = ("all-1g.5gb", "all-2g.10gb", "all-3g.20gb", "all-balanced", "all-balanced", "all-disabled")
RESOURCES = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb", "nvidia.com/gpu")
CALM_SECONDS = 180.0
_PODS_MAX, _RUNS_MAX = 30, 10
_PAUSES = (0.0, 0.1, 0.3, 1.0, 1.0, 2.0)
_STEADY_SECONDS = 1.5
_DEFECTS = re.compile(r"Traceback|hit a bug|internal error")


@dataclass(slots=True)
class Contest:
    """One node, those who compete for it, and what has happened so far."""

    cluster: Cluster
    node: Node
    rng: random.Random
    witness: Witness
    outages: Outages
    pods: Pods
    runs: Runs
    counts: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    default_strategy: str = "mixed"
    revivals: int = 0
    _began: float = field(default_factory=time.monotonic)
    _number: int = 0
    _frozen: dict[int, tuple[int, int]] = field(default_factory=dict)
    _outages_until: dict[str, int] = field(default_factory=dict)
    _round: int = 0

    def say(self, text: str) -> None:
        """One line of the record by which a failure is read."""
        print(f"{time.strftime('%H:%M:%S')} +{time.monotonic() - self._began:6.1f}s round {self._round}: {text}")

    def play(self) -> None:
        """One round: an action, what has become due, and a look."""
        self._round += 1
        self._end_what_is_due()
        action, weight_name = self._choose()
        self.counts[weight_name] += 1
        try:
            self.say(f"{weight_name} {action() or ''}")
        except (ClusterError, OSError) as error:
            if self.outages.api_answers and "UnexpectedAdmission" not in str(error):
                raise
            self.say(f"{weight_name}: not now: {error}")
        time.sleep(self.rng.choice(_PAUSES))
        self.check()

    def check(self) -> None:
        """Nothing that must never be was seen."""
        if self.outages.agent_ended_by_itself():
            self.revivals += 1
            self.say("the agent had ended by itself")
        assert not self.witness.breaches, "\n".join(self.witness.breaches[:20])
        said = [run.said for run in self.runs.all] + [self.outages.agent.log]
        found = [text for text in said if _DEFECTS.search(text)]
        assert not found, found[0][-4000:]

    def calm(self) -> None:
        """End every outage; then layouts must be reached or wait for somebody who is named, and nobody who has room may wait."""
        self._thaw(everything=True)
        self.outages.end_all()
        self._outages_until.clear()
        for run in self.runs.living:
            run.send(signal.SIGCONT)
        self.ended += self.pods.sweep()
        for pod in [each for each in self.pods.seen() if not each.node][::2]:
            self.pods.delete(pod.name, force=False)
        self.say("calm")
        wait_for(
            "nobody is held up", lambda: not self._held_up(), timeout=CALM_SECONDS, period=0.5, explain=self._held_up
        )
        self.check()
        self.say(f"calm: {condition(self.cluster, self.node).get('message', '')[:200]}")

    def finish(self) -> None:
        """End everybody but the waiters; these must all be served, and nothing may be left in the register."""
        self.calm()
        # A lost state folder leaves slices that Tranche does not know for its own: a layout destroys them, no request does.
        label(self.cluster, self.node, "all-disabled")
        for pod in self.pods.seen():
            self.pods.delete(pod.name, force=False)
        deadline = time.monotonic() + CALM_SECONDS
        while self.runs.living or self.runs.remains():
            assert time.monotonic() < deadline, [(run.name, run.request, run.said) for run in self.runs.living]
            for holding in self.runs.remains():
                if holding.devices:
                    _signal(holding.pid, signal.SIGKILL)
            time.sleep(0.2)
            self.check()
        wait_for("the pods are gone", lambda: not self.pods.seen(), timeout=CALM_SECONDS)
        wait_for("the register is empty", self._register_is_empty, timeout=CALM_SECONDS, period=0.5, explain=self._ps)
        self.calm()
        state = labels(self.cluster, self.node).get("nvidia.com/mig.config.state", "success")
        assert state == "success", condition(self.cluster, self.node)
        self.check()

    def _choose(self) -> tuple[Callable[[], str | None], str]:
        api: list[tuple[int, str, Callable[[], str | None]]] = [
            (30, "pods", self._create_pods),
            (6, "delete", lambda: self._delete_pod(force=False)),
            (5, "force-delete", lambda: self._delete_pod(force=True)),
            (11, "layout", self._label_layout),
            (3, "strategy by label", self._label_strategy),
            (2, "strategy by ConfigMap", self._write_strategy),
        ]
        machine: list[tuple[int, str, Callable[[], str | None]]] = [
            (20, "run", self._start_run),
            (4, "end run", lambda: self._signal_run(signal.SIGTERM)),
            (4, "kill run", lambda: self._signal_run(signal.SIGKILL)),
            (3, "stop run", lambda: self._signal_run(signal.SIGSTOP)),
            (4, "kill command", self._kill_command),
            (4, "kill pod's process", self._kill_in_pod),
            (3, "stop pod's process", self._freeze_in_pod),
            *((2, f"kill {part}", lambda part=part: self._outage(part, kill=True)) for part in PARTS),
            *((1, f"stop {part}", lambda part=part: self._outage(part, kill=False)) for part in PARTS),
            (1, "strategy by option", self._restart_agent),
            (1, "state folder deleted", self._delete_state_folder),
        ]
        choices = [*api, *machine] if self.outages.api_answers else machine
        _, name, action = self.rng.choices(choices, [weight for weight, _, _ in choices])[0]
        return action, name

    def _create_pods(self) -> str | None:
        seen = self.pods.seen()
        self.ended += self.pods.sweep() if sum(each.finished for each in seen) > 10 else Counter()
        if sum(not each.finished for each in seen) >= _PODS_MAX:
            return "too many"
        offered = [resource for resource, count in self._allocatable().items() if count] or list(RESOURCES)
        made = []
        for _ in range(self.rng.choice((1, 2, 3, 5))):
            name = self._name("pod")
            kind = self.rng.choice((*SCRIPTS, "long", "long"))
            resource = self.rng.choice(offered if self.rng.random() < 0.8 else RESOURCES)
            self.pods.create(name, self.witness.mark(name), kind, resource)
            made.append(f"{name} ({kind}, {resource})")
        return ", ".join(made)

    def _delete_pod(self, *, force: bool) -> str | None:
        pods = [each for each in self.pods.seen() if not each.terminating and not each.finished]
        bound = [each for each in pods if each.node]
        pods = bound or pods
        chosen = self.rng.sample(pods, min(len(pods), self.rng.choice((1, 1, 2, 4))))
        for each in chosen:
            self.pods.delete(each.name, force=force)
        return ", ".join(each.name for each in chosen)

    def _label_layout(self) -> str | None:
        layout = self.rng.choice(LAYOUTS) if self.rng.random() < 0.9 else None
        label(self.cluster, self.node, layout)
        return str(layout)

    def _label_strategy(self) -> str | None:
        strategy = self.rng.choice((*strategies.STRATEGIES, None))
        strategies.label_strategy(self.cluster, self.node, strategy)
        return strategy

    def _write_strategy(self) -> str | None:
        strategy = self.rng.choice(strategies.STRATEGIES)
        strategies.write_default(self.cluster, strategy)
        self.default_strategy = strategy
        return strategy

    def _restart_agent(self) -> str | None:
        option = self.rng.choice(strategies.AGENT_OPTIONS)
        kept = [each for each in self.outages.agent.options if each not in strategies.AGENT_OPTIONS]
        self.outages.restart_agent(*kept, option)
        return option

    def _start_run(self) -> str | None:
        if len(self.runs.living) >= _RUNS_MAX:
            return "too many"
        kind = self.rng.choice((*COMMANDS, "long", "long"))
        run = self.runs.start(self._name("run"), kind, self.rng.choice(REQUESTS))
        return f"{run.name} ({kind}, {run.request})"

    def _signal_run(self, number: signal.Signals) -> str | None:
        if not (living := self.runs.living):
            return None
        run = self.rng.choice(living)
        if run.stopped:
            run.send(signal.SIGCONT)
        run.send(number)
        return run.name

    def _kill_command(self) -> str | None:
        held = [each for each in self.runs.remains() if each.devices]
        return self._hit(held, signal.SIGKILL)

    def _kill_in_pod(self) -> str | None:
        return self._hit(self._in_pods(), signal.SIGKILL)

    def _freeze_in_pod(self) -> str | None:
        return self._hit(self._in_pods(), signal.SIGSTOP)

    def _in_pods(self) -> list[Holding]:
        return [each for each in self.witness.holdings() if each.competitor.startswith("pod-")]

    def _hit(self, held: list[Holding], number: signal.Signals) -> str | None:
        if not held:
            return None
        victim = self.rng.choice(sorted(held, key=lambda each: (each.competitor, each.pid)))
        _signal(victim.pid, number)
        if number == signal.SIGSTOP:
            self._frozen[victim.pid] = victim.started, self._round + self.rng.randint(1, 8)
        return f"{victim.competitor} (pid {victim.pid})"

    def _outage(self, part: str, *, kill: bool) -> str | None:
        rounds = self.rng.choice((0, 0, 1, 2, 4))
        if kill:
            self.outages.kill(part)
        else:
            self.outages.stop(part)
        self._outages_until[part] = self._round + rounds
        if kill and rounds == 0:
            self.outages.end(part)
        return f"for {rounds} rounds"

    def _delete_state_folder(self) -> str | None:
        shutil.rmtree(self.node.machine.directory / "tranche", ignore_errors=True)
        return f"beside {len(self.runs.living)} commands"

    def _end_what_is_due(self) -> None:
        self._thaw()
        for part in [each for each, until in self._outages_until.items() if until < self._round]:
            del self._outages_until[part]
            if part in self.outages.out:
                self.outages.end(part)
                self.say(f"{part} is back")
        for run in self.runs.living:
            if run.stopped and self.rng.random() < 0.3:
                run.send(signal.SIGCONT)

    def _thaw(self, *, everything: bool = False) -> None:
        for pid, (started, until) in tuple(self._frozen.items()):
            if everything or until < self._round:
                del self._frozen[pid]
                if start_of(pid) == started:
                    _signal(pid, signal.SIGCONT)

    def _nobody_waits(self) -> bool:
        if self._held_up():
            return False
        time.sleep(_STEADY_SECONDS)
        return not self._held_up()

    def _held_up(self) -> str:
        """What somebody waits for without need; "" when nothing. An agent that ended is started meanwhile."""
        self.check()
        try:
            seen = self.pods.seen()
            now, allocatable = labels(self.cluster, self.node), self._allocatable()
            about = condition(self.cluster, self.node)
        except (ClusterError, OSError) as error:
            return f"the API server does not answer: {error}"
        living = holdings(self.runs.token)
        names, allocations = {each.competitor for each in living}, {each.allocation for each in living}
        found = [
            promises.layout_held_up(now, about, seen, names, allocations),
            promises.pods_held_up(allocatable, seen),
        ]
        given, hardware = self.pods.given(), self.witness.hardware()
        held = {uuid: "" for each in living for uuid in each.devices}
        for each in seen:
            held |= {} if each.finished else given.get(each.uid, {})
        if waiting := self.runs.waiting():
            found.append(promises.run_held_up(waiting[0].name, waiting[0].request, hardware, held))
        if self._mixed(now) and now.get("nvidia.com/mig.config.state", "success") == "success":
            found.append(promises.offers_wrong(allocatable, hardware, held))
        return "; ".join(each for each in found if each)

    def _mixed(self, now: Mapping[str, str]) -> bool:
        """Whether the strategy is the mixed one, by the agent's option, else by the node's label, else by the ConfigMap."""
        option = next(each for each in self.outages.agent.options if each in strategies.AGENT_OPTIONS)
        if option != strategies.BY_CONFIG_MAP:
            return option.endswith("=mixed")
        return now.get(strategies.LABEL, self.default_strategy) == "mixed"

    def _allocatable(self) -> dict[str, int]:
        found = node_object(self.cluster, self.node)["status"]["allocatable"]
        return {name: int(count) for name, count in found.items() if name in RESOURCES}

    def _register_is_empty(self) -> bool:
        return '"allocations": []' in self._ps()

    def _ps(self) -> str:
        return self.node.run(TRANCHE, "ps", "-o", "json")

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
