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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_MARK = "SHARDWRIGHT_TEST_RUN"


@dataclass(frozen=True)
class Launched:
    """How it ended, and what each rank wrote."""

    code: int
    ended: float
    outputs: tuple[str, ...]
    launcher: str
    left: tuple[int, ...]
    """Processes that were still there."""

    def __str__(self) -> str:
        ranks = [f"-- rank {rank}\n{text}" for rank, text in enumerate(self.outputs)]
        return "\n".join([f"exit code {self.code}, left {self.left}", *ranks, "-- torchrun", self.launcher])


def launch(script: str, *args: str, ranks: int = 4, timeout: float = 120.0) -> Launched:
    """Run a script under torchrun; whatever is left at the end is killed, and named."""
    with tempfile.TemporaryDirectory() as logs:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
            "--master-addr", "127.0.0.1", "--master-port", str(_free_port()),
            "--log-dir", logs, "--redirects", "3", str(HERE / script), *args,
        ]  # fmt: skip
        own = Path(logs) / "torchrun"
        (code,), ended, left = _run([(command, {}, own)], timeout)
        outputs = tuple(_written(Path(logs), rank) for rank in range(ranks))
        return Launched(code, ended, outputs, own.read_text(), left)


def launch_bare(script: str, *args: str, ranks: int = 2, timeout: float = 120.0) -> Launched:
    """The same without torchrun: nobody ends the others, and rank 0 holds the store."""
    with tempfile.TemporaryDirectory() as logs:
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        files = [Path(logs) / str(rank) for rank in range(ranks)]
        command = [sys.executable, str(HERE / script), *args]
        runs = [(command, {**common, "RANK": str(rank)}, file) for rank, file in enumerate(files)]
        codes, ended, left = _run(runs, timeout)
        return Launched(max(map(abs, codes)), ended, tuple(file.read_text() for file in files), "", left)


def _run(
    runs: Sequence[tuple[list[str], dict[str, str], Path]], timeout: float
) -> tuple[list[int], float, tuple[int, ...]]:
    """Exit codes, when the last one ended, and what had to be killed."""
    mark = uuid.uuid4().hex
    common = {**os.environ, _MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    common.pop("SHARDWRIGHT_TIMEOUT", None)
    with contextlib.ExitStack() as files:
        started = []
        for command, env, path in runs:
            file = files.enter_context(open(path, "w"))
            started.append(subprocess.Popen(command, env={**common, **env}, stdout=file, stderr=file))
        end = time.time() + timeout
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
    return codes, ended, left


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
