"""Stated rules under an independent check: ``python benchmarks/discovery_attacked.py --seed 7be7278f --count 120``

Draws operators of ATen and `torch.nn.functional` from PyTorch's OpInfo database by a seed, states their rules, and has
`tests/brute_force.py` try fresh calls inside each rule's region.  A line of JSON for each operator goes to ``--out`` as
soon as it is known; operators that are there already are skipped, so a run may be continued.  Each operator runs in a
process of its own with a limit on CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch

from brute_force import Call, Subject, calls_of_overload, check_statement

SPACES = ("", "linalg", "special", "fft", "nn.functional")
MOST_BASES = 40


def function_named(name: str) -> Any:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def names() -> list[str]:
    """The functions of `torch` and of these modules that the database has samples of."""
    from torch.testing._internal.common_methods_invocations import op_db

    every = {entry.name for entry in op_db}
    return sorted(n for n in every if n.rpartition(".")[0] in SPACES and callable(function_named(n)))


def database_calls(name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls of a function, as PyTorch's own tests make them."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for entry in op_db:
        if entry.name != name:
            continue
        wanted = (torch.float64, torch.complex128, torch.int64, torch.bool, torch.float32)
        dtype = next((d for d in wanted if d in entry.dtypes), None)
        if dtype is None:
            continue
        torch.manual_seed(5)
        samples = list(zip(range(300), entry.sample_inputs("cpu", dtype)))
        step = max(1, len(samples) // MOST_BASES)
        for _, sample in samples[::step]:
            found.append(((sample.input, *sample.args), dict(sample.kwargs)))
    return found


def verdict_of(name: str, effort: str, wanted: int, draws: int) -> dict[str, Any]:
    from shardwright.discover import QUICK, THOROUGH, discover
    from shardwright.discover.learn import SURVEY
    from shardwright.discover.operator import REQUIRED

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begin = time.process_time()
    statements = discover(f"torch.{name}", {"quick": QUICK, "survey": SURVEY, "thorough": THOROUGH}[effort])
    spent = time.process_time() - begin
    function, calls = function_named(name), database_calls(name)
    told: dict[str, Any] = {"name": name, "discover_s": round(spent, 2), "statements": []}
    for statement in statements:
        operator = statement.operator
        arguments = operator.arguments
        if statement.refused or not statement.rules:
            told["statements"].append({"overload": operator.overload, "refused": statement.refused or "no rule"})
            continue
        bases: list[Call] = []
        for args, kwargs in calls:
            try:
                if operator.overload:
                    bases += calls_of_overload(function, args, kwargs, operator.overload)
                else:
                    bases.append(Call({**{a.name: v for a, v in zip(arguments, args)}, **kwargs}))
            except Exception:  # whatever torch raises: this is no legal call
                continue
        bases = [b for b in bases if b.tensors() and sum(t.numel() for _, t in b.tensors()) <= 3000]
        if operator.overload:
            schema = operator.call._schema.arguments
            positional = [a.name for a in schema if not a.kwarg_only]
            keyword = [a.name for a in schema if a.kwarg_only]
        else:
            positional = [a.name for a in arguments if not a.keyword_only]
            keyword = [a.name for a in arguments if a.keyword_only]
        subject = Subject(operator.call, positional, keyword, operator.mutates)
        defaults = {a.name: a.default for a in arguments if a.default is not REQUIRED}
        found = check_statement(statement, subject, bases, defaults, "7be7278f", wanted, draws)
        told["statements"].append({
            "overload": operator.overload, "rules": [f"{r} [{r.grade}]" for r in statement.every_rule],
            "calls": found.calls, "rows": found.rows, "false": found.false, "untried": found.untried,
            "valid": found.valid, "covered": found.covered, "missed": found.missed,
            "wide_valid": found.wide_valid, "wide_covered": found.wide_covered,
        })  # fmt: skip
    told["seconds"] = round(time.process_time() - begin, 2)
    return told


def in_a_process(name: str, limit: int, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The verdict, from a child that dies alone."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        try:
            told = verdict_of(name, *arguments)
        except Exception as error:  # what goes wrong with one operator is its result
            told = {
                "name": name,
                "error": f"{type(error).__name__}: {error}"[:300],
                "at": traceback.format_exc()[-600:],
            }
        with os.fdopen(writes, "w") as pipe:
            pipe.write(json.dumps(told))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"name": name, "error": f"ended with status {status}"}


def summary(lines: list[dict[str, Any]]) -> str:
    every = [s for line in lines for s in line.get("statements", ())]
    judged = [s for s in every if "rules" in s]
    valid, covered = sum(s["valid"] for s in judged), sum(s["covered"] for s in judged)
    wide = sum(s.get("wide_valid", 0) for s in judged), sum(s.get("wide_covered", 0) for s in judged)
    false = [(s["overload"], text) for s in judged for text in s["false"]]
    with_rules = sum(any("rules" in s for s in line.get("statements", ())) for line in lines)
    rules, rows = sum(len(s["rules"]) for s in judged), sum(s["rows"] for s in judged)
    told = [
        f"{len(lines)} operators, {with_rules} judged, {len(judged)} statements, {rules} rules, {rows} rows",
        f"{len(false)} false rules",
        f"{covered} of {valid} valid rows covered ({100 * covered / max(valid, 1):.1f}%)",
        f"{wide[1]} of {wide[0]} of calls without a dim of size 1 ({100 * wide[1] / max(wide[0], 1):.1f}%)",
        f"{sum(line.get('discover_s', 0) for line in lines):.0f} CPU s of discovery",
        *(f"FALSE {overload}: {text}" for overload, text in false),
        *(f"ERROR {line['name']}: {line['error']}" for line in lines if "error" in line),
    ]
    return "\n".join(told)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", default="7be7278f")
    options.add_argument("--count", type=int, default=120)
    options.add_argument("--names", nargs="*", help="these instead of drawn ones")
    options.add_argument("--out", type=Path, default=Path("discovery_attacked.jsonl"))
    options.add_argument("--effort", default="quick", choices=("quick", "survey", "thorough"))
    options.add_argument("--limit", type=int, default=120, help="CPU seconds for one operator")
    options.add_argument("--wanted", type=int, default=200, help="fresh calls inside each rule's region")
    options.add_argument("--draws", type=int, default=1500, help="fresh calls drawn for one statement")
    options.add_argument("--summary", action="store_true", help="only tell what is in --out")
    asked = options.parse_args()
    drawn = asked.names or random.Random(asked.seed).sample(names(), asked.count)
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    known = {line["name"] for line in lines}
    for name in drawn if not asked.summary else ():
        if name in known:
            continue
        line = in_a_process(name, asked.limit, (asked.effort, asked.wanted, asked.draws))
        lines.append(line)
        with asked.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(name, line.get("seconds"), line.get("error", ""), flush=True)
    print(summary(lines))


if __name__ == "__main__":
    main()
