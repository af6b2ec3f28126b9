"""`World`: the ranks of a job as threads of one process, of which one runs at a time.

Every rank sees a `torch.distributed` of its own, on a backend that sends nothing.  A rank that waits for another gives
the turn away; where all that are left wait, the job would hang, and `Stuck` says who waits for what.  PyTorch's caches
of sharding decisions are kept by thread, so that no rank is told another's slices.  What a process has once changes
hands with the turn (`OfProcess`): random numbers, which each rank would draw alone, the ops that DTensors do in a way
of their own, while a rank is within `loss_parallel`, and whether it is within dispatch modes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from ....errors import TraceError
from .private import (
    FakeStore,
    ThreadLocalWorld,
    distributed_c10d,
    dtensor_dispatcher,
    flags_of_modes,
    put_flags_of_modes,
    set_thread_isolation,
)

T = TypeVar("T")


@dataclass(frozen=True)
class OfProcess:
    """What PyTorch keeps once for a process, as one rank has it."""

    generator: Any
    handlers: dict[Any, Any]
    modes: dict[str, bool]

    @classmethod
    def now(cls) -> OfProcess:
        return cls(torch.random.get_rng_state(), dtensor_dispatcher._custom_op_handlers, flags_of_modes())

    def put(self) -> None:
        torch.random.set_rng_state(self.generator)
        dtensor_dispatcher._custom_op_handlers = self.handlers
        put_flags_of_modes(self.modes)


class Stuck(TraceError):
    """Ranks wait for each other and would do so for ever."""


class _Abandoned(BaseException):
    """Ends the thread of a rank whose job has failed elsewhere."""


class World:
    """Ranks that take turns."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._turn = 0
        self._changed = threading.Condition()
        self._waits: dict[int, tuple[Callable[[], bool], str]] = {}
        """For ranks that wait: whether they can go on, and what they wait for."""
        self._over: set[int] = set()
        self._failed: BaseException | None = None
        self._held: dict[int, OfProcess] = {}

    def run(self, body: Callable[[int], T]) -> list[T]:
        """What ``body`` returns on each rank.  The first error on any rank ends all of them."""
        results: dict[int, T] = {}
        start = OfProcess.now()
        self._held = {number: replace(start, handlers=dict(start.handlers)) for number in range(self.size)}

        def rank(number: int) -> None:
            try:
                with self._changed:
                    self._changed.wait_for(lambda: self._turn == number or self._failed is not None)
                self._check()
                self._held[number].put()
                with _distributed(number, self.size), torch.autograd.set_multithreading_enabled(False):
                    results[number] = body(number)
            except _Abandoned:
                pass
            except BaseException as error:
                self._failed = self._failed or error
            finally:
                with self._changed:
                    self._over.add(number)
                    self._pass_on(number)
                    self._changed.notify_all()

        threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(self.size)]
        with _thread_local_world():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        start.put()
        if self._failed is not None:
            raise self._failed
        return [results[number] for number in range(self.size)]

    def wait(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """Let others run until ``ready``; ``what`` says what this rank waits for."""
        if ready():
            return
        self._held[rank] = OfProcess.now()
        with self._changed:
            self._waits[rank] = (ready, what)
            self._pass_on(rank)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._turn == rank or self._failed is not None)
            self._waits.pop(rank, None)
        self._check()
        self._held[rank].put()

    def _check(self) -> None:
        if self._failed is not None:
            raise _Abandoned

    def _pass_on(self, rank: int) -> None:
        """Give the turn to the next rank that can use it."""
        for step in range(1, self.size + 1):
            other = (rank + step) % self.size
            if other in self._over:
                continue
            wait = self._waits.get(other)
            if wait is None or wait[0]():
                self._turn = other
                return
        if len(self._over) < self.size and self._failed is None:
            rows = [(f"rank {number}", f"waits for {what}") for number, (_, what) in sorted(self._waits.items())]
            rows += [(f"rank {number}", "has ended") for number in sorted(self._over)]
            self._failed = Stuck(
                "the ranks wait for each other: this program hangs", rows=rows,
                help="every rank of a group has to make the same collective calls, in the same order",
            )  # fmt: skip


@contextmanager
def _thread_local_world() -> Iterator[None]:
    before, hook = distributed_c10d._world, sys.excepthook
    distributed_c10d._world = ThreadLocalWorld(before)  # type: ignore[assignment]
    set_thread_isolation(True)
    try:
        yield
    finally:
        set_thread_isolation(False)
        distributed_c10d._world = before
        sys.excepthook = hook  # a process group puts its rank before every line of an error


@contextmanager
def _distributed(rank: int, size: int) -> Iterator[None]:
    torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
