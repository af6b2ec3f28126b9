"""Ranks that run the same thing, or none: what is compared at the start, and how a fault becomes an error.

Before a Program runs, ranks compare its hash, the versions, the mesh with their place in it, and the inputs; through
the store of the default process group, so that no collective is needed to find out that collectives would not work.  A
mismatch is raised on every rank.  While it runs, `watch` looks after the others; while it trains, `Guard.agree` tells
them what with.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ....errors import RankError
from ....ir.digest import program_digest
from ....ir.program import Program
from ....spec.mesh import DeviceMesh
from ..groups import world
from .agreement import Facts
from .joining import WATCHED, launch_note, shared_store
from .processes import Fault, own_machine, ranks_text
from .waiting import Limits, limits_of
from .watch import Watch, failed

_distributed: Any = dist  # untyped in part
_NOTHING: Mapping[str, str] = {}
_OWN = _PLACE, _MACHINE = "place", "machine"  # each rank has its own
_REFUSAL = 2.0  # how long a rank that refuses its inputs waits for the others to do the same
_COMMUNICATION = ("gloo", "nccl", "connection", "socket", "timed out", "timeout", "peer")


def _own_version() -> str:
    try:
        return importlib.metadata.version("shardwright")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


_watches: dict[int, Watch] = {}
"""By default process group: a process has one."""
_stores: dict[int, Any] = {}
_counts: Counter[str] = Counter()
_noted: set[tuple[DeviceMesh, str]] = set()


def watch_of_world(rank: int, limits: Limits | None = None) -> Watch:
    """The watch of this process over the default process group, begun when it is first asked for."""
    key = world()
    if key not in _watches:
        number = len(_watches)  # a new default group begins anew in the same store
        _stores[key] = _distributed.PrefixStore(WATCHED.format(number), shared_store())
        _watches[key] = Watch(_stores[key].clone(), rank, limits or limits_of())
        _watches[key].ranks = set(range(dist.get_world_size()))
        _watches[key].start()
    watch = _watches[key]
    watch.limits = limits or watch.limits
    return watch


class Guard:
    """What an engine asks before and while it runs."""

    def __init__(self, mesh: DeviceMesh, rank: int, limits: Limits, runs_ahead: bool = False) -> None:
        self.mesh = mesh
        self.rank = rank
        self.ranks = tuple(sorted(mesh.device_ids))
        self._peers = frozenset(self.ranks)
        self.watch = watch_of_world(rank, limits)
        self.watch.runs_ahead = runs_ahead
        self.store = _stores[world()]
        self.machines: dict[int, str] = {}
        """Of each rank, once programs were compared."""

    # -- before -----------------------------------------------------------------------------------------

    def compare_programs(self, program: Program) -> None:
        """All that must be the same for collectives to fit together."""
        digest = program_digest(program)
        facts = {
            "versions": f"shardwright {_own_version()}, torch {torch.__version__}",
            "mesh": str(self.mesh),
            "program": f"{program.name}, {len(program.instrs)} instructions, hash {digest[:12]}",
        }
        for i, value in enumerate(program.inputs):
            local = program.values[value]
            facts[f"input {i}"] = f"{local.name}: {local}"
        at = str(self.mesh.coordinates(self.mesh.device_ids.index(self.rank)))
        self._compare(f"compile {program.name}", facts, {_PLACE: at, _MACHINE: own_machine()})
        self.compare_launch()

    def compare_launch(self, node: int | None = None) -> None:
        """Say, once, if the mesh does not fit the machines; ``node`` is what the planner took a machine to have."""
        if self.rank == self.ranks[0] and self.machines:
            note = launch_note(self.mesh, self.machines, node)
            if note is not None and (self.mesh, note) not in _noted:
                _noted.add((self.mesh, note))
                help = "order the mesh's axes, or the machines, so that inner axes stay on one"
                warnings.warn(f"{note}; the plan takes it to be faster than it is. {help}", stacklevel=2)

    def compare_inputs(self, program: Program, wrong: Sequence[str]) -> None:
        """Local shapes differ between ranks, so each says whether it has what the program asks for."""
        self._compare(f"run {program.name}", {"inputs": "; ".join(wrong[:5]) or "as the program says"})

    def refused_everywhere(self) -> bool:
        """Called in a step, by a rank that will not run it: whether no rank will.  Then it is an ordinary error."""
        prefix = f"refused/{'_'.join(map(str, self.ranks))}/{self.watch.activity.entered}"
        self.store.set(f"{prefix}/{self.rank}", "1")
        end = time.monotonic() + _REFUSAL
        while not self.store.check([f"{prefix}/{rank}" for rank in self.ranks]):
            if time.monotonic() > end or self.watch.fault is not None:
                return False
            time.sleep(0.02)
        return True

    def fail(self, error: BaseException) -> None:
        """This rank cannot go on: the others are told, and the error is about to be raised here."""
        self.watch.tell(Fault((self.rank,), failed(error)))
        self.watch.noticed = True

    def _compare(self, what: str, facts: Mapping[str, str], about: Mapping[str, str] = _NOTHING) -> None:
        mesh = "_".join(map(str, self.ranks))
        _counts[mesh] += 1
        prefix = f"compare/{mesh}/{_counts[mesh]}"
        with self.step(f"the comparison before '{what}'"):
            self.store.set(f"{prefix}/{self.rank}", json.dumps({"about to": what, **facts, **about}))
            self._wait_for([f"{prefix}/{rank}" for rank in self.ranks])
            said = {rank: json.loads(self.store.get(f"{prefix}/{rank}")) for rank in self.ranks}
            self.watch.meet(self.store)
            # Whoever said this has read all that was said before the last time.
            self.store.delete_key(f"compare/{mesh}/{_counts[mesh] - 2}/{self.rank}")
        self._check(said)
        self.machines = {rank: facts[_MACHINE] for rank, facts in said.items() if _MACHINE in facts} or self.machines

    def _wait_for(self, keys: list[str]) -> None:
        pause = 0.002
        while not self.store.check(keys):
            self._raise_fault()
            time.sleep(pause)
            pause = min(0.05, pause * 1.5)

    def _check(self, said: Mapping[int, Mapping[str, str]]) -> None:
        odd: set[int] = set()
        rows = []
        for label in dict.fromkeys(label for facts in said.values() for label in facts if label not in _OWN):
            answers = {rank: facts.get(label, "none") for rank, facts in said.items()}
            usual, _ = Counter(answers.values()).most_common(1)[0]
            for rank, answer in answers.items():
                if answer != usual:
                    odd.add(rank)
                    rows.append((label, f"{ranks_text([rank])}: {answer}\nothers: {usual}"))
        for rank, facts in said.items():
            expected = str(self.mesh.coordinates(self.mesh.device_ids.index(rank)))
            if not odd and facts.get(_PLACE, expected) != expected:
                odd.add(rank)
                rows.append((_PLACE, f"{ranks_text([rank])}: {facts[_PLACE]}\nexpected: {expected}"))
        wrong = said[self.ranks[0]].get("inputs", "")
        if not odd and wrong not in ("", "as the program says"):
            return  # the same mistake everywhere is an ordinary error
        if odd:
            raise RankError(
                f"{ranks_text(sorted(odd))} would not do the same as the others",
                rows=rows[:8],
                help="every rank has to run the same program on tensors of the same types; nothing was run",
            )

    # -- meanwhile --------------------------------------------------------------------------------------

    def agree(self, facts: Facts, like: Iterable[int] | None = None) -> None:
        """What this rank trains with in the step that it is about to run; the watch compares it, one step later.

        ``like``: the ranks, this one among them, that must have the same inputs; all if not said.
        """
        if self.watch.fault is not None:
            self._raise_fault()
        self.watch.agreement(self.ranks).add(facts, like)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Work of this rank alone that may last: planning, proving, compiling, loading, saving."""
        return phase_of(self.watch, name)

    def step(self, what: str) -> _Step:
        """While others are waited for."""
        return _Step(self.watch, what, self._peers)

    def _raise_fault(self) -> None:
        if self.watch.fault is not None:
            raise _error(self.watch, self.watch.fault)


@contextlib.contextmanager
def phase_of(watch: Watch, name: str) -> Iterator[None]:
    watch.activity.enter_phase(name)
    try:
        yield
    finally:
        watch.activity.leave()


def _error(watch: Watch, fault: Fault) -> RankError:
    """The main thread raises it: from now on it is the user's."""
    watch.noticed = True
    return RankError(str(fault), rows=[("seen by", f"rank {watch.rank}"), ("in", watch.activity.doing or "no step")])


_shared: Counter[str] = Counter()


def share_text(make: Callable[[], str], rank: int, what: str) -> str:
    """What rank 0 makes, through the store; the others wait for it as long as it takes, and while rank 0 lives."""
    _shared["texts"] += 1
    watch = watch_of_world(rank)
    store = _distributed.PrefixStore(f"shardwright/shared/{_shared['texts']}", shared_store())
    if rank == 0:
        watch.activity.enter_step(f"{what} of rank 0")
        try:
            with phase_of(watch, what):
                text = make()
        except BaseException as error:
            store.set("failed", f"{type(error).__name__}: {error}")
            raise
        finally:
            watch.activity.leave()
        store.set("text", text)
        return text
    with _Step(watch, f"{what} of rank 0"):
        pause = 0.002
        while not store.check(["text"]):
            if store.check(["failed"]):
                raise RankError(
                    f"{what} failed on rank 0, whose result the others take",
                    rows=[("rank 0", store.get("failed").decode())],
                )
            if watch.fault is not None:
                raise _error(watch, watch.fault)
            time.sleep(pause)
            pause = min(0.1, pause * 1.5)
        found: str = store.get("text").decode()
    return found


class _Step:
    """Entered and left at every run, so nothing is done here that takes time."""

    __slots__ = ("peers", "watch", "what")

    def __init__(self, watch: Watch, what: str, peers: frozenset[int] | None = None) -> None:
        self.watch = watch
        self.what = what
        self.peers = peers

    def __enter__(self) -> None:
        watch = self.watch
        watch.peers = self.peers
        watch.activity.enter_step(self.what)
        if watch.fault is not None:
            watch.activity.leave()
            raise _error(watch, watch.fault)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is not None and not isinstance(error, RankError):
                self._explain(error)
        finally:
            self.watch.activity.leave()

    def _explain(self, error: BaseException) -> None:
        """Another rank's fault is named in place of what it did to a collective; ours is told to the others."""
        watch = self.watch
        text = str(error).lower()
        if isinstance(error, RuntimeError) and any(word in text for word in _COMMUNICATION):
            watch.wait_for_fault(4.0)
        if watch.fault is not None:
            raise _error(watch, watch.fault) from error
        watch.tell(Fault((watch.rank,), failed(error)))
        watch.noticed = True
