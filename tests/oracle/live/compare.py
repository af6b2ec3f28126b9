"""Live Shardy beside ours on random programs: ``make test-oracle``, or

    python tests/oracle/live/compare.py --python ORACLE --programs 1000 --reshards 500 --seed 0

where ORACLE is a Python that has jax (`record` runs there).  Propagation has to agree on every value of every program,
with the rules that Shardy gives; our own rules have to be Shardy's; a reshard may move no more bytes than Shardy's list
of collectives.  Differences that are known, with who is right, stand in `KNOWN`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from draw import Drawing, draw_reshard  # noqa: E402
from shardy_vectors import Skip, judge_collectives, judge_joined, judge_propagation, judge_rules_of  # noqa: E402
from vectors import Meshes, read_function  # noqa: E402

from shardwright.errors import ShardwrightError  # noqa: E402

CONSERVATIVE = "conservative-propagation=true"
PROPAGATE = ("sdy-user-priority-propagate", "sdy-op-priority-propagate", "sdy-aggressive-propagate")
APART = "parts of an axis that exclude each other"
TANGLED = "malformed in Shardy"
KNOWN: dict[str, str] = {
    "crash": "Shardy ends its process on the program; there is nothing to compare with.",
    TANGLED: "Shardy's own pass makes a program that its verifier, or ours, refuses.",
    APART: (
        "of an axis of 6, parts of 2 x 3 and of 3 x 2: Shardy takes (1)2 for the beginning of (1)3, which would move "
        "every shard; ours keeps such parts apart, as Shardy does elsewhere."
    ),
    "not exact for uneven shards": "Shardy's list leaves other shards than the target has where dims do not divide.",
}
"""What may differ, and why."""


class Shardy:
    """The process that runs Shardy; where a program ends it, it is started anew."""

    def __init__(self, python: str) -> None:
        self.command = [python, str(HERE / "record.py")]
        self.process = self.start()

    def start(self) -> Any:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def record(self, text: str, name: str, options: str = "") -> dict[str, Any] | None:
        """The record of a program, or None where Shardy ends its process."""
        self.process.stdin.write(json.dumps({"text": text, "pass": name, "options": options}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            made: dict[str, Any] = json.loads(line)
            return made
        self.process.wait()
        self.process = self.start()
        return None

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def propagation_text(seed: int) -> tuple[str, str, str]:
    """A program with the pass and its options."""
    text = Drawing(seed, (3, 12) if seed % 3 else (15, 40)).text()
    return text, PROPAGATE[seed % 5 % 3], CONSERVATIVE if seed % 7 == 0 else ""


def control_text(seed: int) -> tuple[str, str, str]:
    """One with branches and calls."""
    return Drawing(seed, (3, 12), control=True).text(), PROPAGATE[seed % 5 % 3], ""


def judge_control(record: dict[str, Any]) -> str:
    return judge_joined(record, [record, *record["callees"]])


def judged(record: dict[str, Any] | None, judge: Any) -> str:
    """Empty, a tag of `KNOWN`, or what differs."""
    if record is None:
        return "crash"
    if "Failure while executing pass pipeline" in record.get("error", ""):
        return TANGLED
    if "error" in record:
        return f"Shardy refuses the program: {record['error'][:200]}"
    try:
        wrong = str(judge(record))
        return APART if wrong and judge is not judge_collectives and any_apart(record) else wrong
    except Skip as skip:
        return str(skip)
    except ShardwrightError as error:
        if judge is judge_collectives and "cannot coexist" in str(error):
            return TANGLED  # said of Shardy's own steps: those that were asked for are drawn so that they can
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"raw {type(error).__name__}: {error}"


def any_apart(record: dict[str, Any]) -> bool:
    """Whether the program, before or after, speaks of parts of one axis that cannot coexist."""
    meshes = Meshes(record["meshes"])
    sides = [read_function(record[side], meshes) for side in ("input", "expected")]
    specs = [spec for side in sides for spec in (*side.specs.values(), *side.out_specs.values())]
    used = {axis for spec in specs for axis in spec.used_axes}
    return any(not a.coexists(b) for a, b in combinations(used, 2))


def rules_of(record: dict[str, Any]) -> str:
    return judge_rules_of({**record, "passes": [["", CONSERVATIVE if record["passes"][0][1] else ""]]})


def compare(shardy: Shardy, programs: range, control: range, reshards: range) -> Iterator[tuple[str, int, str, str]]:
    """What was compared, its seed, its text, and what differs."""
    for seed in programs:
        text, name, options = propagation_text(seed)
        record = shardy.record(text, name, options)
        yield "propagation", seed, text, judged(record, judge_propagation)
        if record is not None and "error" not in record:
            yield "rules", seed, text, judged(record, rules_of)
    for seed in control:
        text, name, options = control_text(seed)
        yield "control flow", seed, text, judged(shardy.record(text, name, options), judge_control)
    for seed in reshards:
        text = draw_reshard(seed)
        yield "reshard", seed, text, judged(shardy.record(text, "sdy-reshard-to-collectives"), judge_collectives)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="a Python that has jax")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--control", type=int, default=500, help="programs with branches and calls")
    parser.add_argument("--reshards", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-v", "--verbose", action="store_true", help="print the programs that differ")
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    differences = 0
    shardy = Shardy(options.python)
    first = options.seed
    ranges = [range(first, first + count) for count in (options.programs, options.control, options.reshards)]
    for what, seed, text, wrong in compare(shardy, *ranges):
        counts[what, wrong if wrong in KNOWN else "differ" if wrong else "agree"] += 1
        if wrong and wrong not in KNOWN:
            differences += 1
            print(f"{what} {seed}: {wrong}" + (f"\n{text}" if options.verbose else ""), flush=True)
    shardy.close()
    for (what, how), count in sorted(counts.items()):
        print(f"{what}: {count} {how}" + (f" ({KNOWN[how]})" if how in KNOWN else ""))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
