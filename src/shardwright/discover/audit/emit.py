"""Code for what DTensor lacks: the strategy and its tests for every overload with missing rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..emit.files import texts_of
from ..isolate import run_isolated
from ..learn import QUICK, discover
from .operators import Audit


def emit_missing(
    audit: Audit, folder: Path, jobs: int = 2, progress: Callable[[int, int, str], None] = lambda done, of, name: None
) -> dict[str, str]:
    """Write two files for each overload with missing rules; returns those for which that failed, and why."""
    overloads = audit.overloads("missing")
    failed: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for done, outcome in enumerate(run_isolated([(name, _task(name)) for name in overloads], jobs=jobs), start=1):
        if outcome.failure:
            failed[outcome.key] = outcome.failure
        else:
            for name, text in outcome.value.items():
                (folder / name).write_text(text)
        progress(done, len(overloads), outcome.key)
    return failed


def _task(overload: str) -> Callable[[], dict[str, str]]:
    def work() -> dict[str, str]:
        found: dict[str, str] = {}
        for statement in discover(overload, QUICK):
            found.update(texts_of(statement))
        return found

    return work
