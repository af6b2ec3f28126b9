"""`Watch`: one thread in every process that notices when another rank fails, dies, leaves or does not arrive.

Ranks talk through the store of the default process group, over a connection of their own; the program's steps cost
no traffic.  Twice a second the thread writes how far this rank is and looks at the others:

| fault | noticed by |
|---|---|
| a rank raised | its note in the store: ``fault``, of which the first is kept, so that all ranks name the same cause |
| a rank was killed | its process is gone (same host), or its beats stop for `SILENCE` seconds (other hosts) |
| a rank left while others are in a step | its note ``left`` |
| a rank did not arrive | a step takes longer than the timeout; the beats tell who has not entered it |
| the store is lost | the rank that held it is gone |

When there is a fault, the main thread raises it as soon as it is back in Python.  Gloo cannot be interrupted (neither
``abort`` nor ``shutdown`` of a group wakes a waiting thread), so a process that is still there after `GRACE` seconds
writes the fault to stderr and ends with exit code `EXIT_CODE`.  The same holds for SIGTERM, which torchrun sends to
all ranks when one fails: the thread is woken even if the main thread waits in C++, names the fault, and ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

EXIT_CODE = 75
BEAT = 0.5
SILENCE = 8.0
GRACE = 2.5
_NEIGHBOURS = 2  # ranks on other hosts whose beats a rank looks at
_LEFT_AFTER = 2.0  # how long a step may go on after another rank left


@dataclass(frozen=True)
class Fault:
    """Why the job cannot go on."""

    ranks: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        return f"{ranks_text(self.ranks)} {self.reason}"


def ranks_text(ranks: Iterable[int]) -> str:
    """
    >>> ranks_text([2]), ranks_text([0, 3])
    ('rank 2', 'ranks 0, 3')
    """
    words = [str(rank) for rank in ranks]
    return f"rank{'s' if len(words) != 1 else ''} {', '.join(words)}"


@dataclass(frozen=True)
class Process:
    """Where a rank runs.  The start time tells a process from a later one of the same number."""

    host: str
    pid: int
    started: str

    @classmethod
    def this(cls) -> Process:
        return cls(_host(), os.getpid(), _started(os.getpid()) or "")

    def is_gone(self) -> bool:
        return _started(self.pid) != self.started


def _host() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return boot + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""  # not Linux: beats only


def _started(pid: int) -> str | None:
    """When a process began, None if it is gone or only waits to be buried."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Watch:
    """The thread, and what the main thread tells it."""

    def __init__(self, store: Any, rank: int, timeout: float) -> None:
        self.store = store
        self.rank = rank
        self.timeout = timeout
        self.ranks: set[int] = {rank}
        self.entered = 0
        """How many steps this rank has begun."""
        self.inside: float | None = None
        """Since when it is in one."""
        self.doing = ""
        self.fault: Fault | None = None
        self.noticed = False
        """The main thread raised the fault: it is the user's now."""
        self._who: dict[int, Process] = {}
        self._beats: dict[int, tuple[str, float]] = {}
        self._left: dict[int, float] = {}
        self._misses = 0
        self._terminated: float | None = None
        self._in_child = False
        self._stopping = threading.Event()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name="shardwright-watch", daemon=True)

    def start(self) -> None:
        self._set(f"who/{self.rank}", list(_fields(Process.this())))
        self._hook_exceptions()
        self._hook_sigterm()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """Leave in good order: others are told."""
        if not self._stopping.is_set() and not self._in_child:
            self._stopping.set()
            self._poke()
            self._thread.join(2.0)

    def tell(self, fault: Fault) -> Fault:
        """Let all ranks know; the first fault that anybody told is the one.  Returns it."""
        if self.fault is None:
            try:
                text = json.dumps([fault.ranks, fault.reason])
                found = self.store.compare_set("fault", "", text).decode()
                ranks, reason = json.loads(found or text)
                self.fault = Fault(tuple(ranks), reason)
            except Exception:  # the store is gone: then this is all we know
                self.fault = fault
            self._poke()
        return self.fault

    def wait_for_fault(self, seconds: float) -> Fault | None:
        """Give the thread time to find out why a collective broke."""
        end = time.monotonic() + seconds
        while self.fault is None and time.monotonic() < end:
            self._poke()
            time.sleep(0.05)
        return self.fault

    # -- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set() and self.fault is None:
            self._look()
            self._sleep()
        if self.fault is None:
            with contextlib.suppress(Exception):
                self.store.set(f"left/{self.rank}", "1")
            return
        end = time.monotonic() + GRACE
        while time.monotonic() < end or self.noticed:
            if self._stopping.wait(0.05):
                return
            if self._terminated is not None and time.monotonic() > end + GRACE:
                break
        self._end(EXIT_CODE)

    def _sleep(self) -> None:
        ready, _, _ = select.select([self._wake], [], [], BEAT if self._terminated is None else 0.1)
        if ready and signal.SIGTERM in os.read(self._wake, 1024) and self._terminated is None:
            self._terminated = time.monotonic()
        if self._terminated is not None and time.monotonic() > self._terminated + GRACE and self.fault is None:
            # Nobody said why: do as the signal says.
            self._end(128 + signal.SIGTERM, "was told to end (SIGTERM)")

    def _look(self) -> None:
        try:
            self.store.set(f"beat/{self.rank}", json.dumps([self.entered, time.time()]))
            if self.store.check(["fault"]):
                ranks, reason = json.loads(self.store.get("fault"))
                self.fault = Fault(tuple(ranks), reason)
                return
            self._meet()
            for find in (self._find_dead, self._find_silent, self._find_left, self._find_late):
                if self.fault is None:
                    find()
            self._misses = 0
        except Exception as error:  # each kind of store has its own
            self._misses += 1
            self._find_dead()
            if self.fault is None and self._misses > 2 and self.inside is not None:
                self.fault = self._lost_store(_brief(error))

    def _lost_store(self, why: str) -> Fault:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return Fault((self.rank,), f"lost the store that torchrun holds ({why})")
        return Fault((0,), f"is gone, and the store with it ({why})")

    def _meet(self) -> None:
        for rank in self.ranks - self._who.keys():
            if self.store.check([f"who/{rank}"]):
                self._who[rank] = Process(*json.loads(self.store.get(f"who/{rank}")))

    def _find_dead(self) -> None:
        here = _host()
        for rank, process in self._who.items():
            if rank == self.rank or not here or process.host != here or rank in self._left:
                continue
            if process.is_gone() and not self._has_left(rank):
                self.tell(Fault((rank,), f"died: its process {process.pid} is gone"))
                return

    def _has_left(self, rank: int) -> bool:
        try:
            if rank not in self._left and self.store.check([f"left/{rank}"]):
                self._left[rank] = time.monotonic()
        except Exception:
            return False
        return rank in self._left

    def _find_silent(self) -> None:
        here = _host()
        order = sorted(self.ranks)
        at = order.index(self.rank)
        others = [rank for rank in order[at + 1 :] + order[:at] if self._elsewhere(rank, here)]
        for rank in others[:_NEIGHBOURS]:
            beat = self._beat(rank)
            known, since = self._beats.get(rank, ("", time.monotonic()))
            if beat != known:
                self._beats[rank] = (beat, time.monotonic())
            elif time.monotonic() - since > SILENCE and not self._has_left(rank):
                self.tell(Fault((rank,), f"gave no sign of life for {SILENCE:.0f} s"))
                return

    def _elsewhere(self, rank: int, here: str) -> bool:
        return rank in self._who and (not here or self._who[rank].host != here)

    def _beat(self, rank: int) -> str:
        return self.store.get(f"beat/{rank}").decode() if self.store.check([f"beat/{rank}"]) else ""

    def _find_left(self) -> None:
        """Only a rank that waits is looking for others."""
        began = self.inside
        if began is None:
            return
        for rank in sorted(self.ranks - {self.rank}):
            since = self._left.get(rank)
            if since is not None and time.monotonic() - max(since, began) > _LEFT_AFTER:
                self.tell(Fault((rank,), f"ended while others wait for it in {self.doing}"))
                return
            if since is None and time.monotonic() - began > _LEFT_AFTER:
                self._has_left(rank)

    def _find_late(self) -> None:
        began, entered = self.inside, self.entered
        if began is None or time.monotonic() - began <= self.timeout:
            return
        late = []
        for rank in sorted(self.ranks - {self.rank}):
            beat = self._beat(rank)
            if not beat or json.loads(beat)[0] < entered:
                late.append(rank)
        waited = f"within {self.timeout:g} s"
        if self.inside is None or self.entered != entered:
            return  # it went on meanwhile
        if late:
            self.tell(Fault(tuple(late), f"did not arrive at {self.doing} {waited}"))
        else:
            self.tell(Fault(tuple(sorted(self.ranks)), f"did not finish {self.doing} {waited}; all have arrived"))

    # -- ends -------------------------------------------------------------------------------------------

    def _end(self, code: int, reason: str | None = None) -> None:
        text = f"{self.fault}" if reason is None else f"rank {self.rank} {reason}"
        print(f"shardwright: rank {self.rank} ends: {text}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(code)

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    def _hook_exceptions(self) -> None:
        """An exception that nobody catches ends this rank: the others are told before."""
        before = sys.excepthook

        def hook(kind: Any, error: Any, trace: Any) -> None:
            if self.fault is None and not self._in_child:
                self.tell(Fault((self.rank,), f"failed: {_brief(error)}"))
            self.noticed = True
            before(kind, error, trace)

        sys.excepthook = hook

    def _hook_sigterm(self) -> None:
        """Only where nobody else has an interest in the signal."""
        if not _is_main() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        others = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
            return
        signal.signal(signal.SIGTERM, _left_to_the_thread)

    def _forked(self) -> None:
        """A child (a loader of data, say) is no rank: it has neither thread nor say."""
        self._in_child = True
        if signal.getsignal(signal.SIGTERM) is _left_to_the_thread:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _set(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))


def _left_to_the_thread(*_: Any) -> None:
    """Python's part of a signal handler; C's part wakes the thread."""


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _fields(process: Process) -> Iterator[Any]:
    return iter((process.host, process.pid, process.started))


def _brief(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
