"""All operators at once: one process each, with progress, resumable, and a table of what became of them.

The folder holds one YAML file an operator, with the versions it was made with; a run skips operators whose file is
there and of the same versions.  ``summary.json`` counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .isolate import Outcome, run_isolated
from .learn import SURVEY, Effort, discover_entry
from .report import as_dict, yaml_text

VERSION = 2
"""Counted up when discovery itself changes, so that files of an older one are made anew."""

FOUND, NONE, UNJUDGED = "rule found", "none exists", "not judged"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one operator."""

    name: str
    status: str
    reason: str = ""
    rules: int = 0
    combinations: int = 0
    seconds: float = 0.0
    cached: bool = False


def discover_all(
    names: Sequence[str],
    out: Path | None = None,
    jobs: int = 1,
    effort: Effort = SURVEY,
    seconds: float = 30.0,
    progress: Callable[[Verdict, int, int], None] = lambda verdict, done, of: None,
) -> list[Verdict]:
    """Discover each operator in a process of its own; write files to `out`, skipping those that are there."""
    versions = _versions()
    _warm()
    verdicts: dict[str, Verdict] = {}
    missing = []
    for name in names:
        known = _read(out, name, versions) if out is not None else None
        if known is None:
            missing.append(name)
        else:
            verdicts[name] = known
            progress(known, len(verdicts), len(names))
    for outcome in run_isolated(_tasks(missing, effort), jobs=jobs, seconds=seconds):
        verdict = _verdict(outcome)
        verdicts[outcome.key] = verdict
        if out is not None:
            _write(out, outcome, verdict, versions)
        progress(verdict, len(verdicts), len(names))
    ordered = [verdicts[name] for name in names]
    if out is not None:
        (out / "summary.json").write_text(json.dumps(summary(ordered), indent=2) + "\n")
    return ordered


def _tasks(names: Iterable[str], effort: Effort) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in names:
        yield name, lambda name=name: [as_dict(statement) for statement in discover_entry(name, effort)]  # type: ignore[misc]


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.failure:
        return Verdict(outcome.key, UNJUDGED, outcome.failure, seconds=outcome.seconds)
    facts = outcome.value
    judged = [f for f in facts if not f.get("refused")]
    if not judged:
        reasons = "; ".join(dict.fromkeys(f["refused"] for f in facts))
        return Verdict(outcome.key, UNJUDGED, reasons or "no sample of a call is known", seconds=outcome.seconds)
    rules = sum(_beyond_replicated(f) for f in judged)
    combinations = sum(f.get("combinations", 0) for f in judged)
    return Verdict(outcome.key, FOUND if rules else NONE, "", rules, combinations, outcome.seconds)


def _beyond_replicated(facts: dict[str, Any]) -> int:
    rules = [*facts["unconditional_rules"], *facts["conditional_rules"]]
    return sum(any(term != "R" for term in (*rule["inputs"], *rule["output"])) for rule in rules)


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Counts by what became of the operators, and why some could not be judged."""
    reasons = Counter(_kind_of_reason(v.reason) for v in verdicts if v.status == UNJUDGED)
    return {
        "operators": len(verdicts),
        **{status: sum(v.status == status for v in verdicts) for status in (FOUND, NONE, UNJUDGED)},
        "why not judged": dict(reasons.most_common()),
        "combinations": sum(v.combinations for v in verdicts),
    }


def summary_text(verdicts: Sequence[Verdict]) -> str:
    """The same, to read."""
    facts = summary(verdicts)
    lines = [f"{facts['operators']:6} operators, {facts['combinations']:,} combinations of placements"]
    lines += [f"{facts[status]:6} {status}" for status in (FOUND, NONE, UNJUDGED)]
    lines += [f"{count:10} {reason}" for reason, count in facts["why not judged"].items()]
    spent = sum(v.seconds for v in verdicts if not v.cached)
    return "\n".join([*lines, f"{spent:6.0f} CPU seconds"])


def _kind_of_reason(reason: str) -> str:
    """Reasons without the particulars, so that they can be counted."""
    return re.sub(r"\d+", "n", reason.split(":")[0])


def file_of(out: Path, name: str) -> Path:
    """The file of an operator; only letters, digits, dots and dashes reach the file system."""
    return out / (re.sub(r"[^A-Za-z0-9_.\-]", "_", name) + ".yaml")


def _warm() -> None:
    """Load what every child needs before forking; threads do not survive a fork, and small tensors want none."""
    import torch

    from .torch.samples import opinfo_available

    torch.set_num_threads(1)
    opinfo_available()


def _versions() -> dict[str, Any]:
    import torch

    return {"torch": str(torch.__version__).split("+")[0], "discovery": VERSION}


def _read(out: Path, name: str, versions: dict[str, Any]) -> Verdict | None:
    try:
        facts = yaml.safe_load(file_of(out, name).read_text())
    except (OSError, yaml.YAMLError):
        return None
    if not isinstance(facts, dict) or facts.get("made_with") != versions:
        return None
    known = facts["verdict"]
    return Verdict(name, known["status"], known["reason"], known["rules"], known["combinations"], cached=True)


def _write(out: Path, outcome: Outcome, verdict: Verdict, versions: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "name": verdict.name,
        "verdict": {
            "status": verdict.status,
            "reason": verdict.reason,
            "rules": verdict.rules,
            "combinations": verdict.combinations,
        },
        "made_with": versions,
        "statements": outcome.value or [],
    }
    target = file_of(out, verdict.name)
    part = target.with_suffix(".part")
    part.write_text(yaml_text(facts))
    part.replace(target)  # a run cut short leaves no half file
