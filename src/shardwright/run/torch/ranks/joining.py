"""How processes find each other, and whether they stand as the mesh says.

The environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; ``torchrun`` sets it) says all there is to say.  Every
process writes into the store who it is, and waits until all have; so who is missing has a name, and a process of
another job that uses the same port is noticed.  PyTorch itself would wait for half an hour, and mix the jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ....errors import MeshError, RankError, ShardwrightError
from ....spec.mesh import DeviceMesh
from ..groups import world as world_number
from ..private import default_store
from .processes import Process, ranks_text
from .waiting import Limits

_distributed: Any = dist  # untyped in part
_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_READING = 0.5  # seconds in which others can read, of the rank that holds the store, why it goes
_JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
WATCHED = "shardwright/{}"
"""Where the watches of the n-th default group write, in the store that all ranks share."""
_joined: dict[int, Any] = {}
"""The stores that ranks met at, by default group."""


def has_processes(fake: bool = False) -> bool:
    """Whether there is a process group of real processes; PyTorch's ``fake`` one, for studies of one rank, is none."""
    return dist.is_available() and dist.is_initialized() and (fake or dist.get_backend() != "fake")


def join_others(limits: Limits) -> None:
    """Where the environment says that this is one of several processes, and nobody has made a group of them yet."""
    if not all(name in os.environ for name in _NAMES) or not dist.is_available() or dist.is_initialized():
        return
    rank, world, port = (_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < world:
        raise MeshError(f"RANK is {rank}, WORLD_SIZE {world}", help="ranks count from 0 to WORLD_SIZE - 1")
    meeting = _Meeting(rank, world, os.environ["MASTER_ADDR"], port, limits.step)
    store = meeting.hold()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=max(limits.user, 1))
        )
    except RuntimeError as error:
        raise RankError(
            f"a rank is gone while ranks 0 to {world - 1} come together at {meeting.place}",
            rows=[("seen by", f"rank {rank}"), ("PyTorch", str(error).splitlines()[0])],
            help="the first rank that failed says why; give every job a MASTER_PORT of its own",
        ) from error
    _joined[world_number()] = store


def shared_store() -> Any:
    """What all ranks of the default group share: where they met, or what the user's own group has."""
    return _joined.get(world_number()) or default_store()


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise MeshError(
            f"{name} is {os.environ[name]!r}", help="give a whole number, or launch with torchrun"
        ) from None


class _Meeting:
    """All processes of a job, at one store."""

    def __init__(self, rank: int, world: int, address: str, port: int, seconds: float) -> None:
        self.rank, self.world, self.seconds = rank, world, seconds
        self.address, self.port = address, port
        self.by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.me: list[Any] = [*Process.this().fields, time.time(), {name: os.environ.get(name) for name in _JOBS}]

    @property
    def place(self) -> str:
        return f"{self.address}:{self.port}"

    def hold(self) -> Any:
        """The store, once all are there."""
        base = self._store()
        if self.by_agent:  # each attempt of torchrun begins anew
            base = _distributed.PrefixStore(f"/worker/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", base)
        store = _distributed.PrefixStore("shardwright/join", base)
        missing = list(range(self.world))
        with _told_to_end(lambda: self._waiting(missing)):
            try:
                self._register(base, store)
                self._wait(store, missing)
            except ShardwrightError:
                time.sleep(_READING if self.rank == 0 and not self.by_agent else 0.0)
                raise
            except RuntimeError as error:  # of the connection
                raise RankError(
                    "rank 0 is gone, and the store with it, before all ranks had started", rows=[("store", self.place)]
                ) from error
        return base

    def _store(self) -> Any:
        mine = self.rank == 0 and not self.by_agent
        if not mine:
            self._reach()
        try:
            return _distributed.TCPStore(
                self.address, self.port, self.world, mine, timedelta(seconds=max(self.seconds, 1)),
                wait_for_workers=False, multi_tenant=True,
            )  # fmt: skip
        except RuntimeError as error:
            if not mine:
                raise self._nobody() from None
            raise RankError(
                f"rank 0 cannot open port {self.port}: another job uses it, or another process is rank 0, too",
                rows=[("store", self.place), ("PyTorch", str(error).splitlines()[0])],
                help="give every job a MASTER_PORT of its own",
            ) from None

    def _reach(self) -> None:
        """Wait until somebody listens; PyTorch's own waiting takes up to three times as long as it is told to."""
        end = time.monotonic() + self.seconds
        while True:
            try:
                with socket.create_connection((self.address, self.port), timeout=5.0):
                    return
            except OSError:
                if time.monotonic() > end:
                    raise self._nobody() from None
                time.sleep(0.1)

    def _nobody(self) -> RankError:
        return RankError(
            f"rank 0 is missing: nobody answers at {self.place} within {self.seconds:g} s",
            rows=[("here", f"rank {self.rank} of {self.world}")],
            help="start RANK 0 with the same MASTER_ADDR and MASTER_PORT; SHARDWRIGHT_TIMEOUT allows more time",
        )

    def _register(self, base: Any, store: Any) -> None:
        """Nobody else may be this rank, and rank 0 has to be of the same job."""
        found = json.loads(store.compare_set(str(self.rank), "", json.dumps(self.me)).decode())
        help = "give every job a MASTER_PORT of its own"
        if found[:3] != self.me[:3]:
            fact = f"two processes are rank {self.rank} at {self.place}: two jobs share a port"
            if time.time() - found[3] < self.seconds:  # who is the right one?
                self._end_all(base, store, f"is there twice, as processes {found[1]} and {self.me[1]}: {help}")
            rows = [("first", f"process {found[1]}"), ("this one", f"process {self.me[1]}")]
            raise RankError(fact, rows=rows, help=help)
        if store.check(["0"]):
            first = json.loads(store.get("0"))
            for name, job in self.me[4].items():
                if job and first[4].get(name) not in (None, job):
                    store.delete_key(str(self.rank))
                    raise RankError(
                        f"a foreign job answers at {self.place}",
                        rows=[(f"its {name}", first[4][name]), ("here", job)], help=help,
                    )  # fmt: skip

    def _end_all(self, base: Any, store: Any, reason: str) -> None:
        """Those that wait here, and those that have gone on: their watches read it."""
        text = f"rank {self.rank} {reason}"
        store.compare_set("failed", "", text)
        watched = _distributed.PrefixStore(WATCHED.format(0), base)
        watched.compare_set("fault", "", json.dumps([[self.rank], reason]))

    def _wait(self, store: Any, missing: list[int]) -> None:
        end, pause = time.monotonic() + self.seconds, 0.002
        while True:
            if store.check(["failed"]):
                raise RankError(store.get("failed").decode(), rows=[("seen by", f"rank {self.rank}")])
            missing[:] = [rank for rank in missing if not store.check([str(rank)])]
            if not missing:
                return
            if time.monotonic() > end:
                error = self._waiting(missing)
                store.compare_set("failed", "", str(error.args[0]).splitlines()[0])
                raise error
            time.sleep(pause)
            pause = min(0.1, pause * 1.5)

    def _waiting(self, missing: list[int]) -> RankError:
        return RankError(
            f"{ranks_text(missing)} of {self.world} did not start within {self.seconds:g} s",
            rows=[("seen by", f"rank {self.rank}, at {self.place}")],
            help="start all ranks, 0 to WORLD_SIZE - 1; SHARDWRIGHT_TIMEOUT allows more time",
        )


@contextlib.contextmanager
def _told_to_end(error: Any) -> Iterator[None]:
    """torchrun ends all ranks when one of them dies: who is waited for is said before."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*_: Any) -> None:
        raise error()

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# -- where this process stands --------------------------------------------------------------------------


def own_device() -> torch.device:
    backend = dist.get_backend() if has_processes() else ""
    if torch.cuda.is_available() and backend != "gloo":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def position_of(mesh: DeviceMesh, rank: int, world: int, allow_smaller: bool) -> int:
    """Where a rank stands in a mesh."""
    rows = [("mesh", f"{mesh}: {mesh.size} devices"), ("processes", str(world))]
    if world == 1 and mesh.size > 1 and not has_processes():
        raise no_processes(mesh.size)
    if max(mesh.device_ids) >= world:
        raise MeshError(
            "the mesh has devices that no process stands for",
            rows=rows,
            help=f"run torchrun --nproc-per-node {mesh.size}",
        )
    if mesh.size < world and not allow_smaller:
        raise MeshError(
            "the mesh is smaller than the number of processes",
            rows=rows,
            help="start as many processes as the mesh has devices, or pass allow_smaller_mesh=True",
        )
    if rank not in mesh.device_ids:
        raise MeshError(
            f"rank {rank} stands nowhere in the mesh", rows=rows, help="make the engine on the ranks of the mesh only"
        )
    return mesh.device_ids.index(rank)


def no_processes(size: int) -> MeshError:
    return MeshError(
        f"a mesh of {size} devices, but this is one process",
        help=f"run torchrun --nproc-per-node {size} and torch.distributed.init_process_group(), "
        "or use engine='virtual' for several devices in one process",
    )


def launch_note(mesh: DeviceMesh, machines: Mapping[int, str], node: int | None = None) -> str | None:
    """What of the mesh does not fit the machines that the ranks run on; None where all is as the planner takes it.

    The planner takes ranks to fill machine after machine, ``node`` of them (None: as many as there are on one), and
    axes whose groups stay inside to run over the fast link.

    >>> mesh = DeviceMesh("dp=2, tp=2")
    >>> launch_note(mesh, {0: "a", 1: "a", 2: "b", 3: "b"})
    >>> launch_note(mesh, {0: "a", 1: "b", 2: "a", 3: "b"})
    "the ranks of a machine do not follow each other (ranks 0, 2; ranks 1, 3): axis 'tp' runs between machines"
    >>> launch_note(mesh, {0: "a", 1: "b", 2: "c", 3: "d"}, node=8)
    "machines have 1 rank, the hardware of the plan 8 devices a node: axes 'dp', 'tp' run between machines"
    """
    groups: dict[str, list[int]] = {}
    for rank in sorted(machines):
        groups.setdefault(machines[rank], []).append(rank)
    largest = max(map(len, groups.values()))
    size = node or largest
    crossing = [
        name
        for name in mesh.axis_names
        if _spanned(mesh, name, lambda rank: machines[rank]) > _spanned(mesh, name, lambda rank: rank // size)
    ]
    if not crossing:
        return None
    axes = f"{'axis' if len(crossing) == 1 else 'axes'} {', '.join(map(repr, crossing))}"
    runs = f"{axes} run{'s' if len(crossing) == 1 else ''} between machines"
    if any(ranks[-1] - ranks[0] >= len(ranks) for ranks in groups.values()):
        some = "; ".join(ranks_text(ranks) for ranks in list(groups.values())[:4])
        return f"the ranks of a machine do not follow each other ({some}): {runs}"
    if node is not None and largest < node:
        what = f"machines have {largest} rank{'s' if largest > 1 else ''}"
        return f"{what}, the hardware of the plan {node} devices a node: {runs}"
    counts = ", ".join(f"{many} of {count}" for count, many in sorted(Counter(map(len, groups.values())).items()))
    return f"machines have unlike numbers of ranks ({counts}): {runs}"


def _spanned(mesh: DeviceMesh, axis: str, machine: Any) -> int:
    """Over how many machines a group along the axis goes, at most."""
    return max(len({machine(mesh.device_ids[p]) for p in group}) for group in mesh.groups([axis]))
