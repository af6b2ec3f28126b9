"""Faults on real processes: what is done, what the ranks have to say, and within how many seconds all have ended.

`test_faults` waits four times as long; ``benchmarks/faults.py`` measures, with the settings that users have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launch import Launched, launch, launch_bare

SOON = 15.0


@dataclass(frozen=True)
class Case:
    """One fault."""

    name: str
    reason: str
    """What every other rank says, as a pattern."""
    on_itself: str | None = None
    """What the rank with the fault says; None: the same."""
    kind: str = ""
    """For the script, if not the name."""
    rank: int = 1
    ranks: int = 2
    promised: float = SOON
    bare: bool = False
    """Without torchrun, which would end the others."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Settings with which a test need not wait so long."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """For the launcher."""
    note: str = ""
    """What another rank says before the end, at the default settings."""

    def run(self, env: Mapping[str, str] | None = None, patience: float = 4.0, starting: float = 60.0) -> Launched:
        """``starting``: until the fault; processes that are still there after ``patience`` times the promise are
        killed, and listed as left."""
        start = launch_bare if self.bare else launch
        timeout = starting + patience * self.promised
        how = {"ranks": self.ranks, "timeout": timeout, **self.how}
        return start("faults.py", self.kind or self.name, str(self.rank), env=env, **how)

    def check(self, done: Launched) -> None:
        for rank, text in enumerate(done.outputs):
            wanted = self.on_itself if rank == self.rank and self.on_itself is not None else self.reason
            assert re.search(wanted, text), f"rank {rank} does not say {wanted!r}\n{done}"
            assert "finished" not in text, str(done)
        assert all(done.codes), str(done)
        assert done.left == (), str(done)


_DIED = r"rank {} died: its process \d+ is gone"
_UNLIKE = r"rank 1 would not do the same as the others"
_QUICK = {"SHARDWRIGHT_TIMEOUT": "4"}
_TWICE = r"rank 1 is there twice, as|two processes are rank 1|rank 0 cannot open port|a rank is gone while"

CASES = (
    Case("kill at start", r"rank 1 of 2 did not start", "fault"),
    Case("kill in a step", _DIED.format(1), "fault", kind="kill", ranks=3),
    Case("kill between steps", _DIED.format(1), "fault", kind="idle"),
    Case("kill of rank 0", r"rank 0 (died: its process \d+ is gone|is gone)", "fault", kind="kill", rank=0, bare=True),
    Case("kill of rank 0 between steps", r"rank 0 (died: its process \d+ is gone|is gone)", "fault", kind="idle",
         rank=0, bare=True),
    Case("stop", r"rank 1 is stopped: its process \d+ does not run", bare=True),
    Case("stop between steps", r"rank 1 is stopped: its process \d+ does not run", kind="stop between", ranks=3),
    Case("stop of rank 0", r"rank 0 is stopped: its process \d+ does not run", kind="stop", rank=0, bare=True),
    Case("exception", r"rank 1 failed: ValueError: no more data", r"ValueError: no more data", kind="raise", ranks=3),
    Case("hang in user code", r"rank 1 did not arrive at step \d+ \(program\) within \d+ s, but stayed in user code",
         kind="sleep", promised=600 + SOON, short=_QUICK,
         note=r"rank 1 has been in user code for 6\d s, others wait in step \d+ \(program\)"),
    Case("leaves", r"rank 1 ended while others wait for it in step \d+ \(program\)", "fault", kind="leave"),
    Case("bad step", r"rank 1 failed: GraphError: the inputs are not those of program", r"1 inputs, not 2"),
    Case("other program", _UNLIKE + r"[^$]*rank 1: other_program", kind="program"),
    Case("other shape", _UNLIKE + r"[^$]*rank 1: x: f32\[8, 6@x\]", kind="shape"),
    Case("other dtype", _UNLIKE + r"[^$]*rank 1: x: f64", kind="dtype"),
    Case("other input", _UNLIKE + r"[^$]*rank 1: x is f64\[4, 3\], not f32\[4, 3\]", kind="input"),
    Case("other seed", r"rank 1 has other values of 'up.weight' than rank 0", kind="seed"),
    Case("other lr", r"rank 1 has other options \(numbers in param_groups\) than rank 0 in step 4", kind="lr"),
    Case("other lr in the last steps", r"rank 1 has other options .* than rank 0 in step 4", kind="short"),
    Case("other batch", r"rank 1 has other inputs than ranks 0, 2 in step 4", kind="batch", ranks=3),
    Case("other order", r"rank 1 has other inputs than rank 0 in step 1", kind="order"),
    Case("skipped step", r"rank 1 has other inputs than rank 0 in step 4", kind="skip"),
    Case("skipped step, no collectives", r"rank 1 has other inputs than rank 0 in step 4", kind="skip alone"),
    Case("rank 1 missing", r"rank 1 of 2 did not start within \d+ s", bare=True, promised=60 + SOON, short=_QUICK,
         kind="start", how={"missing": [1]}),
    Case("rank 0 missing", r"rank 0 is missing: nobody answers at 127.0.0.1:\d+ within \d+ s", bare=True, rank=-1,
         promised=60 + SOON, short=_QUICK, kind="start", how={"missing": [0]}),
    Case("Ctrl-C", r"rank \d was interrupted \(Ctrl-C\)|KeyboardInterrupt", kind="run", bare=True, ranks=3,
         how={"interrupt": True}),
    Case("Ctrl-C to torchrun", r"rank \d was interrupted \(Ctrl-C\)|KeyboardInterrupt", kind="run",
         how={"interrupt": True}),
)  # fmt: skip
TWO_JOBS = Case("two jobs on one port", _TWICE, kind="start", bare=True, how={"jobs": 2})
