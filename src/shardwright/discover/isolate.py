"""Run a function in a process of its own, forked from this one, with a time and a memory limit.

An operator that crashes, hangs or eats all memory is a result, not the end of the run.  Forking a parent that has
everything imported costs milliseconds.  The answer comes back as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run: its value, or why there is none."""

    key: str
    value: Any = None
    failure: str = ""
    """Empty, or: ``crashed (SIGSEGV)``, ``ran longer than 60 s``, the exception."""
    seconds: float = 0.0
    """CPU seconds that it took."""


@dataclass(slots=True)
class _Child:
    key: str
    pid: int
    pipe: int
    deadline: float
    answer: bytes = b""
    late: bool = False


def isolated(work: Callable[[], Any], seconds: float = 60.0, memory: int = 4 * GIB) -> Outcome:
    """The JSON-able value of ``work()``, run in a child."""
    return next(run_isolated([("", work)], jobs=1, seconds=seconds, memory=memory))


def run_isolated(
    tasks: Iterable[tuple[str, Callable[[], Any]]], jobs: int = 1, seconds: float = 60.0, memory: int = 4 * GIB
) -> Iterator[Outcome]:
    """Run tasks, `jobs` at a time, each in a child of its own; outcomes come as they are ready."""
    waiting = iter(tasks)
    running: dict[int, _Child] = {}
    selector = selectors.DefaultSelector()
    try:
        while True:
            while len(running) < max(1, jobs) and (task := next(waiting, None)) is not None:
                child = _start(*task, seconds, memory)
                running[child.pipe] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            if not running:
                return
            now = time.monotonic()
            nearest = min(child.deadline for child in running.values())
            for event, _ in selector.select(timeout=max(0.0, min(nearest - now, 1.0))):
                child = running[int(event.fd)]
                piece = os.read(child.pipe, 1 << 16)
                child.answer += piece
                if not piece:
                    selector.unregister(child.pipe)
                    del running[child.pipe]
                    yield _finish(child)
            for child in running.values():
                if not child.late and time.monotonic() > child.deadline:
                    child.late = True
                    os.kill(child.pid, signal.SIGKILL)
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            os.close(child.pipe)
            os.waitpid(child.pid, 0)
        selector.close()


def _start(key: str, work: Callable[[], Any], seconds: float, memory: int) -> _Child:
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _be_a_child(work, write, seconds, memory)
    os.close(write)
    # CPU time is limited in the child; on a busy machine it may take longer by the clock.
    return _Child(key, pid, read, time.monotonic() + 4 * seconds)


def _be_a_child(work: Callable[[], Any], pipe: int, seconds: float, memory: int) -> None:
    """Never returns: a forked child must not run its parent's cleanup."""
    code = 1
    try:
        _limit(seconds, memory)
        try:
            text = json.dumps({"value": work()}).encode()
        except MemoryError:
            text = json.dumps({"failure": f"needed more than {memory / GIB:g} GiB"}).encode()
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            text = json.dumps({"failure": f"{type(error).__name__}: {lines[0][:300]}"}).encode()
        while text:
            text = text[os.write(pipe, text) :]
        code = 0
    finally:
        os._exit(code)


def _limit(seconds: float, memory: int) -> None:
    """CPU time and memory beyond what the parent had; crashes leave no core and print nothing."""
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)


def _finish(child: _Child) -> Outcome:
    os.close(child.pipe)
    _, status, usage = os.wait4(child.pid, 0)
    spent = usage.ru_utime + usage.ru_stime
    if child.late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return Outcome(child.key, failure="ran longer than its time limit", seconds=spent)
    if os.WIFSIGNALED(status):
        return Outcome(child.key, failure=f"crashed ({signal.Signals(os.WTERMSIG(status)).name})", seconds=spent)
    try:
        answer = json.loads(child.answer)
    except ValueError:
        return Outcome(child.key, failure="ended without an answer", seconds=spent)
    return Outcome(child.key, answer.get("value"), answer.get("failure", ""), spent)
