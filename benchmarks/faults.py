"""Faults on real processes with the settings that users have: how long until every rank has ended.

``python benchmarks/faults.py [--only NAME]`` prints a table: fault, promised and measured seconds (from the fault to
the end of the last process), what the ranks said.  All of it takes half an hour: one fault is a rank that hangs in user
code, which may be waited for for 10 minutes.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "dist"))
from fault_table import CASES, TWO_JOBS, Case


def said(case: Case, text: str) -> str:
    found = re.search(case.reason, text)
    return "" if found is None else found.group().splitlines()[0]


def measure(case: Case) -> bool:
    done = case.run()
    problem = ""
    try:
        case.check(done)
        if case.note and not any(re.search(case.note, text) for text in done.outputs):
            problem = "no line in time"
    except AssertionError as error:
        problem = str(error).splitlines()[0]
    texts = [said(case, text) for text in done.outputs]
    measured = f"{done.seconds:5.1f}" if not done.left else "never"
    print(
        f"| {case.name} | {case.promised:.0f} | {measured} | {problem or next(filter(None, texts), '')} |", flush=True
    )
    return not problem and done.seconds <= case.promised


def main() -> None:
    names = [case.name for case in (*CASES, TWO_JOBS)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=names, help="this fault; may be given several times")
    only = parser.parse_args().only or names
    print("| fault | promised, s | measured, s | said |\n|---|---|---|---|", flush=True)
    kept = [measure(case) for case in (*CASES, TWO_JOBS) if case.name in only]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
