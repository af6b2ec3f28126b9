"""Ranks that run the same thing, or none: what is compared at the start, and how a fault becomes an error.

Before a Program runs, ranks compare its hash, the versions, the mesh with their place in it, and the inputs; through
the store of the default process group, so that no collective is needed to find out that collectives would not work.  A
mismatch is raised on every rank.  While it runs, `watch` looks after the others.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...errors import RankError
from ...ir.digest import program_digest
from ...ir.program import Program
from ...spec.mesh import DeviceMesh
from .groups import world
from .private import default_store
from .watch import Fault, Watch, ranks_text

_distributed: Any = dist  # untyped in part
TIMEOUT = 300.0
_COMMUNICATION = ("gloo", "nccl", "connection", "socket", "timed out", "timeout", "peer")


def default_timeout() -> float:
    """Seconds a step may take, from ``SHARDWRIGHT_TIMEOUT``."""
    return float(os.environ.get("SHARDWRIGHT_TIMEOUT", TIMEOUT))


def _own_version() -> str:
    try:
        return importlib.metadata.version("shardwright")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


_watches: dict[int, Watch] = {}
"""By default process group: a process has one."""
_stores: dict[int, Any] = {}
_counts: Counter[str] = Counter()


class Guard:
    """What an engine asks before and while it runs."""

    def __init__(self, mesh: DeviceMesh, rank: int, timeout: float) -> None:
        self.mesh = mesh
        self.rank = rank
        self.timeout = timeout
        self.ranks = tuple(sorted(mesh.device_ids))
        key = world()
        if key not in _watches:
            number = len(_watches)  # a new default group begins anew in the same store
            _stores[key] = _distributed.PrefixStore(f"shardwright/{number}", default_store())
            _watches[key] = Watch(_stores[key].clone(), rank, timeout)
            _watches[key].start()
        self.store = _stores[key]
        self.watch = _watches[key]
        self.watch.timeout = timeout
        self.watch.ranks = self.watch.ranks | set(self.ranks)

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
        self._compare(f"compile {program.name}", facts, at)

    def compare_inputs(self, program: Program, wrong: Sequence[str]) -> None:
        """Local shapes differ between ranks, so each says whether it has what the program asks for."""
        self._compare(f"run {program.name}", {"inputs": "; ".join(wrong[:5]) or "as the program says"})

    def _compare(self, what: str, facts: Mapping[str, str], at: str = "") -> None:
        mesh = "_".join(map(str, self.ranks))
        _counts[mesh] += 1
        prefix = f"compare/{mesh}/{_counts[mesh]}"
        with self.step(f"the comparison before '{what}'"):
            self.store.set(f"{prefix}/{self.rank}", json.dumps({"about to": what, **facts, "": at}))
            self._wait_for([f"{prefix}/{rank}" for rank in self.ranks])
            said = {rank: json.loads(self.store.get(f"{prefix}/{rank}")) for rank in self.ranks}
        self._check(said)

    def _wait_for(self, keys: list[str]) -> None:
        pause = 0.002
        while not self.store.check(keys):
            self._raise_fault()
            time.sleep(pause)
            pause = min(0.05, pause * 1.5)

    def _check(self, said: Mapping[int, Mapping[str, str]]) -> None:
        odd: set[int] = set()
        rows = []
        for label in dict.fromkeys(label for facts in said.values() for label in facts if label):
            answers = {rank: facts.get(label, "none") for rank, facts in said.items()}
            usual, _ = Counter(answers.values()).most_common(1)[0]
            for rank, answer in answers.items():
                if answer != usual:
                    odd.add(rank)
                    rows.append((label, f"{ranks_text([rank])}: {answer}\nothers: {usual}"))
        for rank, facts in said.items():
            expected = str(self.mesh.coordinates(self.mesh.device_ids.index(rank)))
            if not odd and facts[""] and facts[""] != expected:
                odd.add(rank)
                rows.append(("place", f"{ranks_text([rank])}: {facts['']}\nexpected: {expected}"))
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

    def step(self, what: str) -> _Step:
        """While others are waited for."""
        return _Step(self, what)

    def _raise_fault(self) -> None:
        fault = self.watch.fault
        if fault is not None:
            self.watch.noticed = True
            raise self.error(fault)

    def error(self, fault: Fault) -> RankError:
        return RankError(str(fault), rows=[("seen by", f"rank {self.rank}"), ("in", self.watch.doing or "no step")])


_shared: Counter[str] = Counter()


def share_text(make: Callable[[], str], rank: int) -> str:
    """What rank 0 makes, through the store; the others wait for it as long as it takes, and while rank 0 lives."""
    _shared["texts"] += 1
    store = _distributed.PrefixStore(f"shardwright/shared/{_shared['texts']}", default_store())
    if rank == 0:
        try:
            text = make()
        except BaseException as error:
            store.set("failed", f"{type(error).__name__}: {error}")
            raise
        store.set("text", text)
        return text
    pause = 0.002
    while not store.check(["text"]):
        if store.check(["failed"]):
            raise RankError(
                "rank 0 failed, whose plan or proof the others take", rows=[("rank 0", store.get("failed").decode())]
            )
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
    found: str = store.get("text").decode()
    return found


class _Step:
    """Entered and left at every run, so nothing is done here that takes time."""

    __slots__ = ("guard", "what")

    def __init__(self, guard: Guard, what: str) -> None:
        self.guard = guard
        self.what = what

    def __enter__(self) -> None:
        watch = self.guard.watch
        watch.entered += 1
        watch.doing = f"step {watch.entered} ({self.what})"
        watch.inside = time.monotonic()
        if watch.fault is not None:
            self.guard._raise_fault()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        watch = self.guard.watch
        if error is None:
            watch.inside = None
            return
        try:
            if not isinstance(error, RankError):
                self._explain(error)
        finally:
            watch.inside = None

    def _explain(self, error: BaseException) -> None:
        """Another rank's fault is named in place of what it did to a collective; ours is told to the others."""
        guard = self.guard
        text = str(error).lower()
        if isinstance(error, RuntimeError) and any(word in text for word in _COMMUNICATION):
            guard.watch.wait_for_fault(4.0)
        if guard.watch.fault is not None:
            guard.watch.noticed = True
            raise guard.error(guard.watch.fault) from error
        reason = (str(error).strip() or "no message").splitlines()[0]
        guard.watch.tell(Fault((guard.rank,), f"failed: {type(error).__name__}: {reason}"))
        guard.watch.noticed = True
