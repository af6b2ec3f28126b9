"""`Watch`: two threads in every process that notice when another rank fails, dies, stops, leaves, differs or is late.

Ranks talk through the store of the default process group, over a connection of their own; the program's steps cost
no traffic.  One thread speaks with the store: twice a second it writes what this rank does, and looks at the others.  A
store that does not answer blocks whoever asks, without an end; so the other thread asks the kernel alone, listens to
signals, and decides.

| fault | noticed by |
|---|---|
| a rank raised | its note in the store: ``fault``, of which the first is kept, so that all ranks name the same cause |
| a rank was killed | its process is gone (same host), or its beats stop for `SILENCE` seconds (other hosts) |
| a rank is stopped | its process is in state T for `STOPPED` seconds (same host); it is continued, to end as well |
| a rank left while others are in a step | its note ``left`` |
| a rank did not arrive | its beats tell what it does instead, and `waiting` how long it may |
| a rank trains with something else | `agreement` |
| the store is lost, or does not answer | the rank that held it is gone, or `SILENT_STORE` seconds have passed |

When there is a fault, the main thread raises it as soon as it is back in Python.  Gloo cannot be interrupted (neither
``abort`` nor ``shutdown`` of a group wakes a waiting thread), so a process that is still there after `GRACE` seconds
writes the fault to stderr and ends with exit code `EXIT_CODE`.  The same holds for SIGTERM, which torchrun sends to
all ranks when one fails, and for Ctrl-C: the thread is woken even if the main thread waits in C++, names the fault, and
ends.  A process that was itself stopped for a while, and goes on, does not count that time against anybody.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from .agreement import Agreement
from .processes import Fault, Process, own_host
from .waiting import PHASE, STEP, USER, Activity, Doing, Limits, judge

EXIT_CODE = 75
BEAT = 0.5
SILENCE = 20.0
SILENCE_IN_PHASE = 120.0  # code outside Python may keep both threads from running
SILENT_STORE = 20.0
STOPPED = 6.0
GRACE = 2.5
_NEIGHBOURS = 2  # ranks on other hosts whose beats a rank looks at
_LEFT_AFTER = 2.0  # how long a step may go on after another rank left
_FAREWELL = 3.0  # how long a rank that leaves waits for what others have to say about the last steps
_TELLING = 2.0  # how long the store may take to hear of a fault
_GAP = 5.0  # between two beats: this process did not run


class Watch:
    """The threads, and what the main thread tells them."""

    def __init__(self, store: Any, rank: int, limits: Limits) -> None:
        self.store = store
        self.rank = rank
        self.limits = limits
        self.runs_ahead = False
        """The device works while Python goes on."""
        self.ranks: set[int] = {rank}
        """All that are looked after."""
        self.peers: frozenset[int] | None = None
        """Those that the step at hand takes; None: all."""
        self.activity = Activity()
        self.fault: Fault | None = None
        self.noticed = False
        """The main thread raised the fault: it is the user's now."""
        self._agreements: dict[tuple[int, ...], Agreement] = {}
        self._host = own_host()
        self._who: dict[int, Process] = {}
        self._beats: dict[int, tuple[str, float]] = {}
        self._left: dict[int, float] = {}
        self._gone: dict[int, float] = {}
        self._stopped: dict[int, float] = {}
        self._said: set[tuple[int, int]] = set()
        self._misses = 0
        self._looked = time.monotonic()
        self._judged = 0.0
        self._signals: dict[int, float] = {}
        self._telling: Fault | None = None
        self._in_child = False
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._ended = threading.Event()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        os.set_blocking(self._wake, False)
        self._speaker = threading.Thread(target=self._speak, name="shardwright-store", daemon=True)
        self._thread = threading.Thread(target=self._run, name="shardwright-watch", daemon=True)

    def start(self) -> None:
        self.store.set(f"who/{self.rank}", json.dumps(Process.this().fields))
        self._hook_exceptions()
        self._hook_signals()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.stop)
        self._speaker.start()
        self._thread.start()

    def stop(self) -> None:
        """Leave in good order: others are told, and the last steps compared."""
        if self._stopping.is_set() or self._in_child:
            return
        self._stopping.set()
        self._hurry.set()
        self._speaker.join(_FAREWELL + 2 * _TELLING)
        if self.fault is not None and not self.noticed:
            self._end(EXIT_CODE)
        self._ended.set()
        self._poke()
        self._thread.join(1.0)

    def tell(self, fault: Fault) -> Fault:
        """Let all ranks know; the first fault that anybody told is the one.  Returns it."""
        if self.fault is None:
            if not self._speaker.is_alive() or threading.current_thread() is self._speaker:
                self._tell_now(fault)
            else:
                self._telling = self._telling or fault
                self._hurry.set()
                self.wait_for_fault(_TELLING)
            self.fault = self.fault or fault  # the store does not answer: then this is all we know
            self._poke()
        return self.fault

    def _tell_now(self, fault: Fault) -> None:
        text = json.dumps([fault.ranks, fault.reason])
        with contextlib.suppress(Exception):  # the store is gone
            ranks, reason = json.loads(self.store.compare_set("fault", "", text).decode() or text)
            fault = Fault(tuple(ranks), reason)
        self.fault = self.fault or fault

    def wait_for_fault(self, seconds: float) -> Fault | None:
        """Give the threads time to find out why a collective broke."""
        end = time.monotonic() + seconds
        while self.fault is None and time.monotonic() < end:
            self._hurry.set()
            time.sleep(0.05)
        return self.fault

    def agreement(self, ranks: Sequence[int]) -> Agreement:
        """What these ranks agree on, step by step."""
        key = tuple(ranks)
        if key not in self._agreements:
            self._agreements[key] = Agreement(self.rank, key)
        return self._agreements[key]

    # -- the thread that decides ------------------------------------------------------------------------

    def _run(self) -> None:
        last = time.monotonic()
        while not self._ended.is_set() and self.fault is None:
            gap = time.monotonic() - last
            last = time.monotonic()
            if gap > _GAP:
                self._forgive(gap)
            self._look_here()
            if self.fault is None:
                self._sleep()
        if self.fault is None:
            return
        self._poke()
        end = time.monotonic() + GRACE
        while time.monotonic() < end or self.noticed:
            if self._ended.wait(0.05):
                return
            self._read_signals(0.0)
            if signal.SIGTERM in self._signals and time.monotonic() > end + GRACE:
                break
        self._end(EXIT_CODE)

    def _forgive(self, gap: float) -> None:
        self.activity.forgive(gap)
        self._looked = time.monotonic()
        for times in (self._gone, self._stopped):
            times.clear()
        self._beats = {}

    def _look_here(self) -> None:
        """What the kernel knows of the ranks on this host."""
        now = time.monotonic()
        for rank, process in list(self._who.items()):
            if rank == self.rank or not self._host or process.host != self._host or rank in self._left:
                continue
            state = process.state()
            if not state:
                if now - self._gone.setdefault(rank, now) > _TELLING:  # the store did not say that it left
                    self.tell(_died(rank, process))
                self._hurry.set()
            elif state == "T":
                if now - self._stopped.setdefault(rank, now) > STOPPED:
                    self.tell(Fault((rank,), f"is stopped: its process {process.pid} does not run (SIGSTOP)"))
                    with contextlib.suppress(OSError):
                        os.kill(process.pid, signal.SIGCONT)  # to hear of it, and to end
            else:
                self._stopped.pop(rank, None)
            if self.fault is not None:
                return
        if now - self._looked > SILENT_STORE and self.activity.in_step:
            self.tell(self._lost_store(f"no answer for {SILENT_STORE:.0f} s"))

    def _sleep(self) -> None:
        self._read_signals(BEAT if not self._signals else 0.1)
        ended, interrupted = self._signals.get(signal.SIGTERM), self._signals.get(signal.SIGINT)
        now = time.monotonic()
        if self.fault is not None:
            return
        if ended is not None and signal.getsignal(signal.SIGTERM) is not _left_to_the_thread:
            del self._signals[signal.SIGTERM]  # somebody else has an interest in it
        elif ended is not None and now > ended + GRACE:
            # Nobody said why: do as the signal says.
            self._end(128 + signal.SIGTERM, "was told to end (SIGTERM)")
        if interrupted is not None and now > interrupted + GRACE:
            usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            stuck = self.activity.in_step and self.activity.now().seconds > now - interrupted
            if usual and stuck:  # Python does not come to raise it
                self.tell(Fault((self.rank,), "was interrupted (Ctrl-C)"))
            else:
                del self._signals[signal.SIGINT]

    def _read_signals(self, seconds: float) -> None:
        ready, _, _ = select.select([self._wake], [], [], seconds)
        for number in os.read(self._wake, 1024) if ready else b"":
            if number:
                self._signals.setdefault(number, time.monotonic())

    # -- the thread that speaks with the store ----------------------------------------------------------

    def _speak(self) -> None:
        while not self._stopping.is_set() and self.fault is None:
            self._look()
            self._looked = time.monotonic()
            self._hurry.wait(BEAT)
            self._hurry.clear()
        with contextlib.suppress(Exception):
            if self.fault is None:
                self._take_leave()
        if self._telling is not None:
            self._tell_now(self._telling)

    def _look(self) -> None:
        if self._telling is not None:
            self._tell_now(self._telling)
            return
        try:
            self.store.set(f"beat/{self.rank}", self.activity.now().to_text())
            if self._hear_fault():
                return
            self.meet(self.store)
            if self._holds_store(0):
                self._has_left(0)  # while there is one to ask
            for find in (self._find_dead, self._find_silent, self._find_left, self._find_late, self._find_different):
                if self.fault is None:
                    find()
            self._misses = 0
        except Exception as error:  # each kind of store has its own
            self._misses += 1
            if self.fault is None and 0 in self._gone and self._holds_store(0):
                self.fault = _died(0, self._who[0])
            elif self.fault is None and self._misses > 2 and self.activity.in_step:
                self.fault = self._lost_store(_brief(error))

    def _hear_fault(self) -> bool:
        if not self.store.check(["fault"]):
            return False
        ranks, reason = json.loads(self.store.get("fault"))
        self.fault = self.fault or Fault(tuple(ranks), reason)
        self._poke()
        return True

    def _holds_store(self, rank: int) -> bool:
        return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def _lost_store(self, why: str) -> Fault:
        if not self._holds_store(0):
            return Fault((self.rank,), f"lost the store that torchrun holds ({why})")
        if 0 in self._left:
            return Fault((0,), f"ended while others wait for it in {self.activity.doing}")
        return Fault((0,), f"is gone, and the store with it ({why})")

    def meet(self, store: Any) -> None:
        """Learn which processes the others are; also called by the main thread, with a connection of its own, as soon
        as they are there: one that stops at once, with the store, could not be asked any more."""
        for rank in self.ranks - self._who.keys():
            if store.check([f"who/{rank}"]):
                self._who[rank] = Process(*json.loads(store.get(f"who/{rank}")))

    def _has_left(self, rank: int) -> bool:
        if rank not in self._left and self.store.check([f"left/{rank}"]):
            self._left[rank] = time.monotonic()
        return rank in self._left

    def _find_dead(self) -> None:
        for rank in list(self._gone):
            if self._has_left(rank):
                self._gone.pop(rank, None)
            elif rank not in self._left and not self._who[rank].state():
                self.tell(_died(rank, self._who[rank]))
                return

    def _find_silent(self) -> None:
        order = sorted(self.ranks)
        at = order.index(self.rank)
        others = [rank for rank in order[at + 1 :] + order[:at] if self._elsewhere(rank)]
        for rank in others[:_NEIGHBOURS]:
            heard = self._hear([rank]).get(rank)
            if heard is None:
                continue
            limit = SILENCE_IN_PHASE if heard.kind == PHASE else SILENCE
            if time.monotonic() - self._beats.get(rank, ("", math.inf))[1] > limit and not self._has_left(rank):
                self.tell(Fault((rank,), f"gave no sign of life for {limit:.0f} s"))
                return

    def _elsewhere(self, rank: int) -> bool:
        return rank in self._who and (not self._host or self._who[rank].host != self._host)

    def _hear(self, ranks: Sequence[int]) -> dict[int, Doing]:
        """What others do, as of their last beat; one that has not been heard has done nothing yet."""
        there = [rank for rank in ranks if rank in self._beats or self.store.check([f"beat/{rank}"])]
        texts = self.store.multi_get([f"beat/{rank}" for rank in there]) if there else []
        now, heard = time.monotonic(), {}
        for rank, text in zip(there, texts):
            beat = text.decode()
            if self._beats.get(rank, ("", 0.0))[0] != beat:
                self._beats[rank] = (beat, now)
            heard[rank] = Doing.from_text(beat, now - self._beats[rank][1])
        return heard

    def _find_left(self) -> None:
        """Only a rank that waits is looking for others."""
        if not self.activity.in_step:
            return
        waited = self.activity.now().seconds
        for rank in sorted((self.peers or self.ranks) - {self.rank}):
            since = self._left.get(rank)
            if since is not None and min(time.monotonic() - since, waited) > _LEFT_AFTER:
                self.tell(Fault((rank,), f"ended while others wait for it in {self.activity.doing}"))
                return
            if since is None and waited > _LEFT_AFTER:
                self._has_left(rank)

    def _find_late(self) -> None:
        mine, now = self.activity.now(), time.monotonic()
        waits = mine.kind == STEP or (self.runs_ahead and mine.kind == USER)
        if not waits or mine.seconds <= self.limits.shortest or now - self._judged < min(5.0, self.limits.shortest / 4):
            return
        self._judged = now
        ranks = self.peers or self.ranks
        others = sorted(ranks - {self.rank} - self._left.keys())
        heard = self._hear(others)
        nothing_yet = Doing(0, USER, "", mine.seconds)
        fault, notes = judge(
            self.rank, mine, {rank: heard.get(rank, nothing_yet) for rank in others}, self.limits, self.runs_ahead
        )
        if self.activity.now().seconds < mine.seconds:
            return  # it went on meanwhile
        if fault is not None:
            self.tell(fault)
        elif notes and self.rank == min(ranks - notes.keys(), default=self.rank):
            self._say(notes, mine.entered)

    def _say(self, notes: dict[int, str], entered: int) -> None:
        for rank, text in notes.items():
            if (rank, entered) not in self._said:
                self._said.add((rank, entered))
                print(f"shardwright: {text}", file=sys.stderr, flush=True)

    def _find_different(self) -> None:
        for agreement in list(self._agreements.values()):
            fault = agreement.exchange(self.store)
            if fault is not None:
                self.tell(fault)
                return

    def _take_leave(self) -> None:
        """The last steps are compared, too; and who holds the store waits until nobody needs it."""
        end = time.monotonic() + _FAREWELL
        agreements = [agreement for agreement in self._agreements.values() if agreement.count or agreement.waits]
        settled = False
        while not settled and time.monotonic() < end:
            for agreement in agreements:
                fault = agreement.leave(self.store)
                if fault is not None:
                    self.tell(fault)
                    return
            settled = all(agreement.settled(self.store) for agreement in agreements)
            if not settled:
                if self._hear_fault():
                    return
                time.sleep(0.02)
        self.store.set(f"left/{self.rank}", "1")
        end = time.monotonic() + 3 * BEAT
        others = [f"left/{rank}" for rank in self.ranks - {self.rank}]
        while self._holds_store(self.rank) and others and not self.store.check(others) and time.monotonic() < end:
            time.sleep(0.02)

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
                self.tell(Fault((self.rank,), failed(error)))
            self.noticed = True
            before(kind, error, trace)

        sys.excepthook = hook

    def _hook_signals(self) -> None:
        """Only where nobody else has an interest in them."""
        if threading.current_thread() is not threading.main_thread():
            return
        others = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
        elif signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _left_to_the_thread)

    def _forked(self) -> None:
        """A child (a loader of data, say) is no rank: it has neither thread nor say."""
        self._in_child = True
        if signal.getsignal(signal.SIGTERM) is _left_to_the_thread:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.set_wakeup_fd(-1)


def _left_to_the_thread(*_: Any) -> None:
    """Python's part of a signal handler; C's part wakes the thread."""


def _died(rank: int, process: Process) -> Fault:
    return Fault((rank,), f"died: its process {process.pid} is gone")


def failed(error: BaseException) -> str:
    return "was interrupted (Ctrl-C)" if isinstance(error, KeyboardInterrupt) else f"failed: {_brief(error)}"


def _brief(error: BaseException) -> str:
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
