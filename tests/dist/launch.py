"""Real processes for tests: ``torchrun`` on this machine, with an end.

Worker scripts are ordinary programs; ``python -m torch.distributed.run tests/dist/<script>`` runs them by hand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_MARK = "SHARDWRIGHT_TEST_RUN"


@dataclass(frozen=True)
class Launched:
    """How it ended, and what each process wrote."""

    codes: tuple[int, ...]
    began: float
    """When the processes were started, or interrupted."""
    ended: float
    outputs: tuple[str, ...]
    launcher: str
    left: tuple[int, ...]
    """Processes that were still there."""

    @property
    def code(self) -> int:
        return max(map(abs, self.codes))

    @property
    def seconds(self) -> float:
        """From the fault, as far as a process said when that was, to the end."""
        lines = [line for text in self.outputs for line in text.splitlines() if line.startswith("fault ")]
        return self.ended - max([self.began, *(float(line.split()[1]) for line in lines)])

    def __str__(self) -> str:
        ranks = [f"-- rank {rank}\n{text}" for rank, text in enumerate(self.outputs)]
        return "\n".join([f"exit codes {self.codes}, left {self.left}", *ranks, "-- torchrun", self.launcher])


def launch(
    script: str,
    *args: str,
    ranks: int = 4,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    interrupt: bool = False,
) -> Launched:
    """Run a script under torchrun; whatever is left at the end is killed, and named.

    With ``interrupt`` torchrun gets a Ctrl-C as soon as all ranks say that they are running.
    """
    with tempfile.TemporaryDirectory() as logs:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
            "--master-addr", "127.0.0.1", "--master-port", str(_free_port()),
            "--log-dir", logs, "--redirects", "3", str(HERE / script), *args,
        ]  # fmt: skip
        own = Path(logs) / "torchrun"

        def outputs() -> tuple[str, ...]:
            return tuple(_written(Path(logs), rank) for rank in range(ranks))

        codes, began, ended, left = _run([(command, dict(env or {}), own)], timeout, outputs if interrupt else None)
        return Launched(codes, began, ended, outputs(), own.read_text(), left)


def launch_bare(
    script: str,
    *args: str,
    ranks: int = 2,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    interrupt: bool = False,
    missing: Sequence[int] = (),
    jobs: int = 1,
) -> Launched:
    """The same without torchrun: nobody ends the others, and rank 0 holds the store.

    ``missing`` ranks are not started; several ``jobs`` share one port.
    """
    with tempfile.TemporaryDirectory() as logs:
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), **(env or {})}
        started = [(job, rank) for job in range(jobs) for rank in range(ranks) if rank not in missing]
        files = [Path(logs) / f"{job}.{rank}" for job, rank in started]
        command = [sys.executable, str(HERE / script), *args]
        runs = [(command, {**common, "RANK": str(rank)}, file) for (_, rank), file in zip(started, files)]

        def outputs() -> tuple[str, ...]:
            return tuple(file.read_text() for file in files)

        codes, began, ended, left = _run(runs, timeout, outputs if interrupt else None)
        return Launched(codes, began, ended, outputs(), "", left)


def _run(
    runs: Sequence[tuple[list[str], dict[str, str], Path]],
    timeout: float,
    interrupted: Callable[[], tuple[str, ...]] | None = None,
) -> tuple[tuple[int, ...], float, float, tuple[int, ...]]:
    """Exit codes, when it began, when the last one ended, and what had to be killed."""
    mark = uuid.uuid4().hex
    common = {**os.environ, _MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    common.pop("SHARDWRIGHT_TIMEOUT", None)
    with contextlib.ExitStack() as files:
        started, began = [], time.time()
        for command, env, path in runs:
            file = files.enter_context(open(path, "w"))
            started.append(subprocess.Popen(command, env={**common, **env}, stdout=file, stderr=file))
        end = time.time() + timeout
        if interrupted is not None:
            while not all("running" in text for text in interrupted()) and time.time() < end:
                if any(process.poll() is not None for process in started):
                    break
                time.sleep(0.2)
            began = time.time()
            for process in started:
                process.send_signal(signal.SIGINT)
        codes = []
        for process in started:
            try:
                codes.append(process.wait(max(0.0, end - time.time())))
            except subprocess.TimeoutExpired:
                codes.append(-1)
        ended = time.time()
        left = tuple(_marked(mark))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in started:
            process.wait()
    return tuple(codes), began, ended, left


def _written(logs: Path, rank: int) -> str:
    found = sorted(logs.glob(f"*/attempt_0/{rank}/std*.log"), reverse=True)
    return "".join(path.read_text(errors="replace") for path in found)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _marked(mark: str) -> list[int]:
    """Our processes: torchrun gives each worker a session of its own, so the environment tells."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
