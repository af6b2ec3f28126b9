"""Wrong rules: what lowering makes of one that claims too much, by which it splits wrongly.

Only ops whose meaning the proof has: of the others it takes the rule on trust, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from mutation import functions
from mutation.judging import Row, Tally, changes, difference_of, expected_of, refusal
from mutation.subjects import Subject
from shardwright.errors import ShardwrightError
from shardwright.proof.certificate import trusted_ops
from shardwright.rules.registry import find, rule, set_origin

Wrong = Callable[[str], Iterator[str]]
WRONG: dict[str, Wrong] = {}
"""Kinds of wrong rules: from the text of a right one, ``i j -> i ; j: max ; P(max) -> P(max) | i=4 j=6``."""


def wrong(make: Wrong) -> Wrong:
    WRONG["rule: " + make.__name__.replace("_", " ")] = make
    return make


def _parts(text: str) -> tuple[str, str, list[str], str]:
    """Operands, results, notes and transfers, sizes."""
    body, _, sizes = text.partition(" | ")
    mapping, *notes = body.split(" ; ")
    left, _, right = mapping.partition("->")
    return left.strip(), right.strip(), notes, sizes


def _joined(left: str, right: str, notes: list[str], sizes: str) -> str:
    return " ; ".join([f"{left} -> {right}".strip(), *notes]) + (f" | {sizes}" if sizes else "")


@wrong
def splits_what_is_whole(text: str) -> Iterator[str]:
    left, right, notes, sizes = _parts(text)
    for n, note in enumerate(notes):
        if re.search(r": (whole|permuted)$", note):
            yield _joined(left, right, notes[:n] + notes[n + 1 :], sizes)


@wrong
def splits_without_its_form(text: str) -> Iterator[str]:
    left, right, notes, sizes = _parts(text)
    for n, note in enumerate(notes):
        bare = re.sub(r"form\(\w+\)", "", note).strip()
        if bare != note:
            kept = [] if bare.endswith(":") else [bare]
            yield _joined(left, right, [*notes[:n], *kept, *notes[n + 1 :]], sizes)


@wrong
def reduces_in_another_way(text: str) -> Iterator[str]:
    left, right, notes, sizes = _parts(text)
    gone = set(re.findall(r"\w+", left)) - set(re.findall(r"\w+", right))
    for factor in sorted(gone):
        said = next((note for note in notes if note.startswith(f"{factor}: ")), f"{factor}: sum")
        for kind in ("sum", "max", "min", "prod"):
            if said == f"{factor}: {kind}" or said.split(": ")[1] not in ("sum", "max", "min", "prod"):
                continue
            yield _joined(left, right, [*(n for n in notes if n != said), f"{factor}: {kind}"], sizes)


@wrong
def takes_factors_for_each_other(text: str) -> Iterator[str]:
    """Of equal sizes, in the result or in an operand."""
    left, right, notes, sizes = _parts(text)
    of = dict(re.findall(r"(\w+)=(\d+)", sizes))
    names = sorted(set(re.findall(r"\w+", right)) & set(of))
    for n, a in enumerate(names):
        for b in names[n + 1 :]:
            if of[a] == of[b]:
                swap = {a: b, b: a}
                turned = re.sub(r"\w+", lambda m, swap=swap: swap.get(m[0], m[0]), right)
                yield _joined(left, turned, notes, sizes)


@wrong
def lets_sums_through(text: str) -> Iterator[str]:
    """A pending sum of one operand, or of all, passes."""
    left, right, notes, sizes = _parts(text)
    count = left.count(",") + 1 if left else 0
    results = right.count(",") + 1
    rows = [tuple("P(sum)" if i == n else "R" for i in range(count)) for n in range(count)]
    rows += [("P(sum)",) * count] if count > 1 else []
    said = {note.split(" -> ")[0] for note in notes if "->" in note}
    for row in rows:
        told = ", ".join(row)
        if told not in said and not any("any" in s for s in said):
            yield _joined(left, right, [*notes, f"{told} -> {', '.join(['P(sum)'] * results)}"], sizes)


@wrong
def lets_extremes_through(text: str) -> Iterator[str]:
    left, right, notes, sizes = _parts(text)
    if "," in left or "," in right or not left or any("P(max)" in note or "P(any)" in note for note in notes):
        return
    yield _joined(left, right, [*notes, "P(max) -> P(max)"], sizes)
    yield _joined(left, right, [*notes, "P(max) -> P(min)"], sizes)


@contextmanager
def replaced(op: str, change: Callable[[str], str]) -> Iterator[None]:
    """The book with another rule for one op."""
    right = find(op)
    assert right is not None
    kept = {f.name: getattr(right, f.name) for f in fields(right)}
    about = {
        name: kept[name]
        for name in (
            "flow",
            "cost",
            "meaning",
            "forms",
            "view",
            "alias",
            "random",
            "in_place",
            "doc",
            "beyond",
            "same_as",
        )
    }

    def source(call: Any) -> Any:
        return change(str(right.bind(call.operands, call.results, call.attrs)))

    rule(op, source, replace=True, **about)
    set_origin(op, right.origin)
    try:
        yield
    finally:
        rule(op, right.rule, replace=True, **about, **right.sizes)
        set_origin(op, right.origin)


def known_ops(subject: Subject) -> list[str]:
    """The ops of its graph whose meaning the proof has."""
    trusted = {item.op for item in trusted_ops(subject.program, {})}
    ops = {node.op for node in subject.graph.nodes}
    return sorted(op for op in ops - trusted if find(op) is not None and not op.startswith("core."))


def mutate(name: str, seeds: range) -> Tally:
    """Wrong rules for every op of a function, under some shardings."""
    tally = Tally()
    for seed in seeds:
        good = functions.mapped(name, seed)
        if not good.splits:
            continue
        expected = expected_of(good)
        for op in known_ops(good):
            for kind, make in WRONG.items():
                n = 0
                while n < 6 and _judge(tally, kind, op, n, make, name, seed, good, expected):
                    n += 1
    return tally


def _judge(
    tally: Tally, kind: str, op: str, n: int, make: Wrong, name: str, seed: int, good: Subject, expected: Any
) -> bool:
    """The n-th wrong rule of a kind; whether there are so many."""
    used: list[str] = []

    def change(text: str) -> str:
        """The n-th wrong text; the right one where there are not so many."""
        for i, other in enumerate(make(text)):
            if i == n:
                used.append(other)
                return other
        return text

    with replaced(op, change):
        try:
            bad = functions.mapped(name, seed)
            program = bad.program
        except ShardwrightError:
            if used:  # the book, propagation or lowering does not take it
                row = tally.rows.setdefault(kind, Row())
                row.made, row.refused = row.made + 1, row.refused + 1
                tally.counts["mutants"] += 1
            return bool(used)
        if not used or str(program) == str(good.program):
            return bool(used)
        row = tally.rows.setdefault(kind, Row())
        row.made += 1
        tally.counts["mutants"] += 1
        why = refusal(bad, program)
        row.refused += bool(why)
    try:
        changed = changes(bad, program, expected)
    except Exception:  # whatever a program raises that is split wrongly
        row.stopped += 1
        return True
    if changed:
        row.changing += 1
        row.killed += bool(why)
        if not why:
            lines = difference_of(good.program, program)
            tally.survivors.append(f"{kind}, {op}: {used[0]}\n  in {bad.name}: {changed}\n{lines}")
    return True
