"""The audit: which of DTensor's own sharding rules are right, wrong or missing, and which cannot be judged.

`audit_operator` judges the ATen calls that one operator makes; `audit_all` every overload that DTensor has a rule
for and that some sample reaches, each in a process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import DiscoverError
from ..isolate import run_isolated
from ..operator import Operator, Sample
from ..placement import R
from ..torch.ops import torch_operator
from ..torch.samples import calls_by_overload, opinfo_names, opinfo_operator, samples_from_opinfo, samples_of
from .causes import Cause, causes
from .dtensor import claim, registered_overloads
from .judge import Entry, Judge
from .samples import Calls, calls_of, varied, with_in_place
from .variants import telling

COMMIT = str(torch.version.git_version)

SAMPLES = 6
"""Calls of an overload that are judged."""
SECONDS = 30.0
"""CPU time for one overload: what was not tried by then is said to be so."""

Progress = Callable[[int, int, str], None]
"""Told how many overloads are done, of how many, and which came last."""


@dataclass
class Audit:
    """All entries, and what stands outside them."""

    entries: list[Entry] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Overloads whose judging crashed, hung or raised, and how."""
    without_samples: tuple[str, ...] = ()
    """Registered overloads that no sample reaches."""
    out_variants: tuple[str, ...] = ()
    """Registered overloads that write to ``out``: not judged by themselves."""
    torch: str = torch.__version__
    commit: str = COMMIT
    """The commit of PyTorch that was judged."""
    registered: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """CPU seconds by overload."""

    def of(self, verdict: str, kind: str = "") -> list[Entry]:
        return [e for e in self.entries if e.verdict == verdict and kind in ("", e.kind)]

    def correct(self) -> list[str]:
        """Overloads of which nothing is wrong, and something was judged."""
        bad = {e.overload for e in self.entries if e.verdict == "wrong"}
        return sorted({e.overload for e in self.entries if e.verdict in ("correct", "refuses")} - bad)

    def causes(self) -> list[Cause]:
        """What is wrong, by cause."""
        return causes(self.of("wrong"))

    def overloads(self, verdict: str = "") -> list[str]:
        return sorted({entry.overload for entry in self.entries if verdict in ("", entry.verdict)})

    def as_dict(self) -> dict[str, Any]:
        return {
            "torch": self.torch,
            "commit": self.commit,
            "registered": self.registered,
            "entries": [entry.as_dict() for entry in self.entries],
            "failures": dict(self.failures),
            "without_samples": list(self.without_samples),
            "out_variants": list(self.out_variants),
            "seconds": dict(self.seconds),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Audit:
        return Audit(
            [entry_from_dict(entry) for entry in data["entries"]],
            dict(data["failures"]),
            tuple(data["without_samples"]),
            tuple(data["out_variants"]),
            data["torch"],
            data["commit"],
            data["registered"],
            dict(data["seconds"]),
        )


def entry_from_dict(data: dict[str, Any]) -> Entry:
    return Entry(**{**data, "ways": tuple(data.get("ways", ()))})


def audit_operator(
    target: str | Operator, samples: Sequence[Sample] = (), limit: int = SAMPLES, seconds: float = SECONDS
) -> list[Entry]:
    """What DTensor makes of an operator: of the ATen overload itself, or of every ATen call a function's samples make.

    Overloads without a rule are left out, unless the target is one.
    """
    operator = torch_operator(target) if isinstance(target, str) else target
    given = list(samples) or samples_of(operator, 5 * limit)
    if operator.overload:
        return audit_overload(operator.overload, varied(operator, given, limit), seconds)
    registered = set(registered_overloads())
    calls = calls_of([(operator, given)], limit)
    return [e for name, made in calls.items() if name in registered for e in audit_overload(name, made, seconds)]


def audit_overload(
    overload: str, samples: Sequence[Sample], seconds: float = SECONDS, missing: bool = True
) -> list[Entry]:
    """What DTensor makes of these calls of one ATen overload, and of others made from them.

    Looking for missing rules takes most of the time; without, only those that DTensor has are judged.
    """
    operator = torch_operator(overload)
    if not samples:
        return [Entry("cannot judge", overload, "every rule", "no sample reaches it")]
    return Judge(operator, [*samples, *telling(operator, samples)], seconds, missing).entries()


def audit_all(
    names: Sequence[str] | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    limit: int = SAMPLES,
    seconds: float = SECONDS,
    missing: bool = True,
) -> Audit:
    """Audit these operators (by name, or as ATen overloads), or all that DTensor has a rule for."""
    registered = registered_overloads()
    calls = _to_judge(names, registered, limit)
    _warm(calls)
    outs = [name for name in calls if _writes_out(name)]
    audit = Audit(out_variants=tuple(outs), registered=len(registered))
    tasks = [(name, _task(name, calls[name], limit, seconds, missing)) for name in sorted(calls) if name not in outs]
    for done, outcome in enumerate(run_isolated(tasks, jobs=jobs, seconds=3 * seconds), start=1):
        audit.seconds[outcome.key] = round(outcome.seconds, 2)
        if outcome.value == []:
            audit.without_samples += (outcome.key,)
        elif outcome.failure:
            audit.failures[outcome.key] = outcome.failure
        else:
            audit.entries += map(entry_from_dict, outcome.value)
        if progress is not None:
            progress(done, len(tasks), outcome.key)
    audit.entries.sort(key=lambda entry: entry.overload)  # stable: rules stay in the order they were met
    return audit


def _to_judge(names: Sequence[str] | None, registered: Sequence[str], limit: int) -> Calls:
    """Calls by overload: those that OpInfo's samples make; none yet for the others."""
    if names is not None:
        unknown = [name for name in names if name.startswith("aten.") and name not in registered]
        if unknown:
            raise DiscoverError(f"DTensor has no rule for {', '.join(unknown)}", help="audit an overload that has one")
        functions = [torch_operator(name) for name in names if name not in registered]
        calls = calls_of([(operator, samples_of(operator, 5 * limit)) for operator in functions], limit)
        calls = {name: made for name, made in calls.items() if name in registered}
        return {**{name: _by_opinfo(name, limit) for name in names if name in registered}, **calls}
    found = calls_by_overload(limit=6 * limit)
    calls = {name: varied(torch_operator(name), made, limit) for name, made in found.items() if name in registered}
    return {**{name: [] for name in registered}, **with_in_place(calls)}


def _by_opinfo(overload: str, limit: int) -> list[Sample]:
    """Calls of an overload that PyTorch's samples of the operators named like it make."""
    plain = re.sub(r"(_forward|_backward|_?\d?d)*$", "", overload.split(".")[1].strip("_").removeprefix("foreach_"))
    found: list[Sample] = []
    for name in opinfo_names():
        if plain and plain in name.replace(".", "_"):
            caller = opinfo_operator(name)
            made = calls_of([(caller, samples_from_opinfo(name, limit=5 * limit))], limit)
            found += made.get(overload, [])
    return varied(torch_operator(overload), found, limit) if found else []


def _samples_or_none(overload: str, limit: int) -> list[Sample]:
    try:
        return [sample for sample in samples_of(torch_operator(overload), 3 * limit) if sample.tensors]
    except Exception:  # nothing can be made up for it
        return []


def _writes_out(overload: str) -> bool:
    operator = torch_operator(overload)
    return any(a.keyword_only and a.name in operator.mutates for a in operator.arguments)


def _task(
    name: str, samples: list[Sample], limit: int, seconds: float, missing: bool
) -> Callable[[], list[dict[str, Any]]]:
    def work() -> list[dict[str, Any]]:
        given = samples or varied(torch_operator(name), _samples_or_none(name, limit), limit)
        return [entry.as_dict() for entry in audit_overload(name, given, seconds, missing)] if given else []

    return work


def _warm(calls: Calls) -> None:
    """Load what every child needs before forking; threads do not survive a fork."""
    torch.set_num_threads(1)
    for name, samples in calls.items():
        if samples:
            claim(name, samples[0], (R,) * len(samples[0].tensors), 2)
            return
