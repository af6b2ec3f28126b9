"""Wrong rules by cause: what one mistake in PyTorch explains is one finding, the most harmful first.

Two entries have one cause if they are of one operator (``max_pool1d`` and ``max_pool3d``, ``fill`` and ``fill_`` are
one), or if one function of DTensor for few overloads states both rules, and what goes wrong is of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .dtensor import stated_by, strategy_of
from .judge import Entry

HARM = ("rule", "cache", "dispatch", "uneven", "empty")
"""Where a fault shows, the most harmful first: on even shards, ..., on empty ones only."""

FEW = 20
"""Overloads: a function that states the rules of more is no sign of one mistake."""

KNOWN = (
    ("nll_loss", r"P\(avg\)", "https://github.com/pytorch/pytorch/issues/185167"),
    ("convolution", r"-> R$", "https://github.com/pytorch/pytorch/pull/186129"),
)
"""Public issues that are surely of this cause: an operator's plain name, what its rule looks like, where."""


@dataclass(frozen=True)
class Cause:
    """One mistake, with the entries that it explains: the plainest first."""

    entries: tuple[Entry, ...]
    silent: bool
    """Whether some of it gives wrong numbers without an error."""
    link: str = ""

    @property
    def shown(self) -> Entry:
        """The entry whose script stands for all."""
        return self.entries[0]

    @property
    def overloads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.overload for entry in self.entries))


def causes(entries: Sequence[Entry]) -> list[Cause]:
    """The wrong entries, gathered by cause."""
    groups: list[list[Entry]] = []
    for entry in entries:
        same = [group for group in groups if any(_one_cause(entry, other) for other in group)]
        merged = [entry, *(other for group in same for other in group)]
        groups = [group for group in groups if not any(group is other for other in same)] + [merged]
    found = [_cause(sorted(group, key=_harm)) for group in groups]
    return sorted(found, key=lambda cause: (_harm(cause.shown), -len(cause.overloads), cause.shown.overload))


def _cause(entries: list[Entry]) -> Cause:
    return Cause(tuple(entries), any(not _raises(e) for e in entries), next(filter(None, map(_link, entries)), ""))


def _harm(entry: Entry) -> tuple[int, ...]:
    """Wrong numbers before errors, even shards before others, what programs hold often before what they rarely do.

    Sharded tensors are common, pending sums and averages less so, maxima rare, products rarer; so are complex numbers.
    """
    inputs = entry.rule.partition("->")[0]
    rare = max((number for number, kinds in enumerate(_RARE) for kind in kinds if kind in inputs), default=0)
    odd = "complex" in entry.sample or "complex" in entry.reason
    return int(not entry.script), int(_raises(entry)), HARM.index(entry.kind), int(odd), rare, len(entry.sample)


_RARE = (("S(", "R"), ("P(sum)", "P(avg)"), ("P(max)", "P(min)"), ("P(prod)",))


def _raises(entry: Entry) -> bool:
    return "raises " in entry.reason


def _one_cause(one: Entry, other: Entry) -> bool:
    if plain_name(one) == plain_name(other):
        return one.kind == other.kind or _kinds(one) == _kinds(other)
    if _symptom(one) != _symptom(other):
        return False
    if _raises(one) and one.reason == other.reason:
        return True
    ours, theirs = strategy_of(one.overload), strategy_of(other.overload)
    lists = all(entry.overload.startswith("aten._foreach_") for entry in (one, other))
    return bool(ours) and ours == theirs and _kinds(one) == _kinds(other) and (lists or stated_by(ours) <= FEW)


def plain_name(entry: Entry) -> str:
    """The operator without what tells its forms apart: ``max_pool1d_with_indices`` is ``max_pool``."""
    name = entry.overload.split(".")[1].strip("_")
    name = re.sub(r"^(foreach|linalg|adaptive|upsample|fft)_+", "", name).strip("_")
    name = re.sub(r"(_forward|_backward|_with_indices|_copy|\dd.*)$", "", name)
    return re.sub(r"^[lr](?=shift)", "", name)


def _symptom(entry: Entry) -> tuple[str, str]:
    """Where it shows, and the error if there is one, without its numbers."""
    error = entry.reason.partition("raises ")[2]
    return entry.kind, re.sub(r"\d+|'[^']*'", "#", error)


def _kinds(entry: Entry) -> frozenset[str]:
    """The kinds of placements that the inputs have."""
    return frozenset(re.findall(r"S|P\(\w+\)", entry.rule.partition("->")[0]))


def _link(entry: Entry) -> str:
    for name, rule, url in KNOWN:
        if plain_name(entry) == name and re.search(rule, entry.rule):
            return url
    return ""


def facts(cause: Cause) -> dict[str, Any]:
    """A cause as plain data."""
    return {
        "overloads": list(cause.overloads),
        "shows": cause.shown.kind,
        "silent": cause.silent,
        "rule": cause.shown.rule,
        "reason": cause.shown.reason,
        "link": cause.link,
    }
