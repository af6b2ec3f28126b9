"""What kind of operator it is, found from its tables: category, linearity, order, and its rule in factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase

import numpy as np

from ..errors import ShardwrightError
from ..spec.rule import parse_rule
from .operator import Operator
from .placement import P, Placement, R
from .statement import Rule, ShardedOn
from .synthesis.cases import Situation
from .table import Table, folded

Factors = list[tuple[dict[int, int], dict[int, Placement]]]
"""Each factor: the dim of each input that it stands on, and what each output makes of it."""


def properties(operator: Operator, tables: Sequence[Table], rules: Sequence[Rule]) -> tuple[str, ...]:
    """Mathematical properties that the oracle tested: a rule for pending inputs *is* such a property."""
    table = next((t for t in tables if t.valid), None)
    if table is None:
        return ()
    names = table.sample.tensor_names(operator)
    found: list[str] = []
    linear = [name for i, name in enumerate(names) if _unconditional(rules, {i: "sum"}, "sum", len(names))]
    together = _unconditional(rules, dict.fromkeys(range(len(names)), "sum"), "sum", len(names))
    if together and len(names) > 1:
        found.append(f"linear in {_list(names)} together")
    elif len(linear) == 2:
        found.append(f"bilinear in {_list(linear)}")
    elif linear:
        found.append(f"linear in {_list(linear)}")
    for i, name in enumerate(names):
        up = _unconditional(rules, {i: "max"}, "max", len(names)) and _unconditional(
            rules, {i: "min"}, "min", len(names)
        )
        down = _unconditional(rules, {i: "max"}, "min", len(names)) and _unconditional(
            rules, {i: "min"}, "max", len(names)
        )
        if up:
            found.append(f"increasing in {name}")
        elif down:
            found.append(f"decreasing in {name}")
    if all(_rearranges(t) for t in tables if t.valid):
        found.append("moves elements without computing")
    return tuple(found)


def _list(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def _unconditional(rules: Sequence[Rule], pending: Mapping[int, str], result: str, count: int) -> bool:
    inputs = tuple(P(pending[i]) if i in pending else R for i in range(count))
    return any(
        rule.unconditional and rule.inputs == inputs and all(out is P(result) for out in rule.outputs) for rule in rules
    )


def _rearranges(table: Table) -> bool:
    """Whether every kind of pending data passes: only an operator that computes nothing allows that."""
    roles = table.sample.roles
    data = [array for array, role in zip(table.sample.tensors, roles) if role == "data"]
    if not data or any(array.dtype.kind != "f" for array in data):
        return False
    return all(
        table.holds(tuple(P(kind) if role == "data" else R for role in roles), 0, P(kind))
        for kind in ("sum", "max", "min", "prod")
    )


def category(situations: Sequence[Situation], rules: Sequence[Rule], dim_names: Sequence[str]) -> str:
    """One word for what it does to dims."""
    live = [s for s in situations if s.table.valid]
    if not live:
        return "unknown"
    sharded = [rule for rule in rules if any(isinstance(term, ShardedOn) for term in rule.inputs)]
    reduces = [r for r in sharded if any(isinstance(o, Placement) and o.kind == "P" for o in r.outputs)]
    rearranges = all(_rearranges(s.table) for s in live)
    several = len(live[0].rank) > 1
    if reduces and several and all(sum(isinstance(t, ShardedOn) for t in r.inputs) > 1 for r in reduces):
        return "contraction"
    if reduces:
        return "reduction"
    if rearranges:
        return "view or copy"
    if any(r.unconditional and all(isinstance(o, ShardedOn) for o in r.outputs) for r in sharded) and all(
        _passes_all(s) for s in live if max(s.rank) > 0
    ):
        return "pointwise"
    if sharded and dim_names:
        return "cross-dim operation"
    return "batched operation" if sharded else "whole-tensor operation"


def _passes_all(situation: Situation) -> bool:
    """Whether every dim that can be split passes through to every output, which have the shape of the inputs.

    `kron` passes dims on, too; but its result is larger than both inputs.
    """
    frame = max(situation.shape, key=len)
    broadcast = np.broadcast_shapes(*situation.shape) if _broadcasts(situation.shape) else None
    if any(shape != broadcast for shape in situation.table.outputs):
        return False
    passing = {
        p.dim + len(frame) - situation.rank[i]
        for inputs, outputs in situation.table.valid.items()
        if all(any(o.kind == "S" for o in found) for found in outputs)
        for i, p in enumerate(inputs)
        if p.kind == "S"
    }
    splittable = {
        d
        for d in range(len(frame))
        if any(rank - len(frame) + d >= 0 and shape[rank - len(frame) + d] > 1 for rank, shape in _ranked(situation))
    }
    return splittable <= passing


def _broadcasts(shapes: Sequence[tuple[int, ...]]) -> bool:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _ranked(situation: Situation) -> list[tuple[int, tuple[int, ...]]]:
    return list(zip(situation.rank, situation.shape))


def factor_line(table: Table) -> str:
    """The rule of one call in factor notation, leading batch dims as ``...``; empty if it cannot be said so."""
    names = iter(ascii_lowercase)
    letters: dict[tuple[str, int, int], str] = {}
    notes: list[tuple[str, str]] = []
    for inputs, outputs in _factors(table):
        letter = next(names)
        letters.update({("in", i, dim): letter for i, dim in inputs.items()})
        for o, placement in outputs.items():
            if placement.kind == "S":
                letters["out", o, placement.dim] = letter
            elif placement.kind == "P" and placement.reduce != "sum":
                notes.append((f"{letter}@{o}" if len(outputs) > 1 else letter, placement.reduce))
    shapes = table.sample.shapes
    whole: list[str] = []
    for kind, tensors in (("in", shapes), ("out", table.outputs)):
        for t, shape in enumerate(tensors):
            for dim in range(len(shape)):
                if (kind, t, dim) not in letters:
                    letters[kind, t, dim] = _whole_letter(shape, dim, shapes, letters, whole) or next(names)
                    whole.append(letters[kind, t, dim])
    left = [[letters["in", t, dim] for dim in range(len(shape))] for t, shape in enumerate(shapes)]
    right = [[letters["out", t, dim] for dim in range(len(shape))] for t, shape in enumerate(table.outputs)]
    notes += [(letter, "whole") for letter in dict.fromkeys(whole) if letter != "1"]
    line = _line(*_with_ellipsis(left, right, {name.partition("@")[0] for name, _ in notes}), notes)
    try:
        parse_rule(line)
    except ShardwrightError:
        return ""
    return line


def _whole_letter(
    shape: tuple[int, ...],
    dim: int,
    shapes: Sequence[tuple[int, ...]],
    letters: Mapping[tuple[str, int, int], str],
    whole: Sequence[str],
) -> str:
    """A dim that is never split: the same letter as the one at its place (from the right) in an earlier tensor."""
    if shape[dim] == 1:
        return "1"
    for t, other in enumerate(shapes):
        place = dim - len(shape) + len(other)
        if 0 <= place < len(other) and other[place] == shape[dim] and letters.get(("in", t, place)) in whole:
            return letters["in", t, place]
    return ""


Letters = list[list[str]]


def _with_ellipsis(left: Letters, right: Letters, noted: set[str]) -> tuple[Letters, Letters]:
    """Leading dims that simply pass through become ``...``: all tensors begin with that run, or with an end of it."""
    run = []
    for letter in right[0]:
        if letter in noted or letter == "1":
            break
        run.append(letter)
    while run:
        cut = [_without_run(tensor, run) for tensor in (*left, *right)]
        if all(rest is not None for rest in cut):
            shown = [["...", *rest] for rest in cut if rest is not None]
            plain = [tensor[0] in run if tensor else False for tensor in (*left, *right)]
            # A tensor that has none of them may still be broadcast to them, if nothing else stands in it.
            full = [one if has or len(one) == 1 else one[1:] for one, has in zip(shown, plain)]
            return full[: len(left)], full[len(left) :]
        run.pop()
    return left, right


def _without_run(tensor: Sequence[str], run: Sequence[str]) -> list[str] | None:
    """What follows the part of the run that a tensor begins with; None if it has more of the run elsewhere."""
    for start in range(len(run) + 1):
        head = list(run[start:])
        if list(tensor[: len(head)]) == head and not set(tensor[len(head) :]) & set(run):
            return list(tensor[len(head) :])
    return None


def _line(left: Letters, right: Letters, notes: Sequence[tuple[str, str]]) -> str:
    """The rule as text, letters in order of appearance so that equal rules have equal texts."""
    order: dict[str, str] = {}
    names = iter(ascii_lowercase)
    for tensor in (*left, *right):
        for letter in tensor:
            if letter not in ("...", "1") and letter not in order:
                order[letter] = next(names)

    def side(tensors: Letters) -> str:
        return ", ".join(" ".join(order.get(letter, letter) for letter in tensor) or "()" for tensor in tensors)

    said = []
    for name, word in notes:
        letter, at, result = name.partition("@")
        said.append(f"{order[letter]}{at}{result}: {word}")
    return " ; ".join([f"{side(left)} -> {side(right)}", *sorted(said)])


def _factors(table: Table) -> Factors:
    """Rows without pending inputs, each a factor; a dim is on one factor only, the one on most tensors."""
    rows = []
    for inputs, outputs in folded(table).items():
        if any(p.kind == "P" for p in inputs) or not any(p.kind == "S" for p in inputs):
            continue
        dims = {i: p.dim for i, p in enumerate(inputs) if p.kind == "S"}
        if all(table.sample.shapes[i][dim] == 1 for i, dim in dims.items()):
            continue
        made = {o: sorted(found, key=str)[0] for o, found in enumerate(outputs) if found}
        rows.append((dims, made))
    rows.sort(key=lambda row: (-len(row[0]), str(row)))
    taken: set[tuple[int, int]] = set()
    made_dims: set[tuple[int, int]] = set()
    kept: Factors = []
    for dims, made in rows:
        out_dims = {(o, p.dim) for o, p in made.items() if p.kind == "S"}
        if taken & set(dims.items()) or made_dims & out_dims:
            continue
        taken |= set(dims.items())
        made_dims |= out_dims
        kept.append((dims, made))
    return sorted(kept, key=lambda row: sorted(row[0].items()))


def varying(samples: Sequence[Mapping[str, object]]) -> dict[str, tuple[object, ...]]:
    """Keyword values tried, by argument, of arguments that had more than one or that are dims."""
    found: dict[str, dict[str, object]] = {}
    for values in samples:
        for name, value in values.items():
            found.setdefault(name, {})[repr(value)] = value
    return {name: tuple(seen.values()) for name, seen in found.items() if len(seen) > 1 or "dim" in name}
