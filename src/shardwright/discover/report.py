"""A statement as people and programs read it: text, YAML, JSON, and a line for the rule book."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from ..errors import DiscoverError
from ..spec.collective import REDUCTIONS
from ..spec.rule import RulePattern, Transfer, parse_rule
from .operator import REQUIRED, Operator
from .placement import Placement
from .statement import FRAME, Made, Rule, ShardedOn, Statement
from .table import GRADES

_FLOW_WIDTH = 100
"""Lists that fit in so many columns stand on one line."""


# ---- data ------------------------------------------------------------------------------------------------------


def as_dict(statement: Statement) -> dict[str, Any]:
    """The statement as plain data; the keys are those of the YAML report."""
    samples = statement.samples
    shapes = _distinct([[list(shape) for shape in sample.shapes] for sample in samples])
    dtypes = _distinct([tensor.dtype.name for sample in samples for tensor in sample.tensors])
    worlds = list(statement.worlds)
    found: dict[str, Any] = {
        "operator": statement.operator.name,
        "signature": signature(statement.operator),
        "analysis": {
            "category": statement.category,
            "dim_parameter": _one_or_all(list(statement.dim_parameters)),
            "mathematical_properties": list(statement.properties),
        },
        "sample_inputs_tested": {
            "shapes": shapes,
            "dtypes": dtypes,
            "world_size": _one_or_all(worlds),
            "generators": [{name: about} for name, about in statement.generators],
            "kwargs_swept": {name: [plain(v) for v in values] for name, values in statement.swept.items()},
        },
        "notation": notation(statement),
        "unconditional_rules": [_rule_dict(statement, rule) for rule in statement.rules if rule.unconditional],
        "conditional_rules": [_rule_dict(statement, rule) for rule in statement.rules if not rule.unconditional],
        "adversarial_generators": [{name: about} for name, about in statement.adversarial],
        "rule_book": [{"rule": line, "when": when} for line, when in _rule_texts(statement)],
        "dropped": [{"rule": rule, "reason": reason} for rule, reason in statement.dropped],
        "held_out": {
            "agreeing": statement.held_out[0],
            "all": statement.held_out[1],
            "disagreements": list(statement.disagreements),
        },
        "not_covered": list(statement.leftover),
    }
    if statement.makes:
        found["makes"] = [{"call": made.overload, "dtensor": made.dtensor} for made in statement.makes]
    if statement.fresh:
        found["attack"] = {"fresh_calls": statement.fresh, "refuted": list(statement.refuted)}
    if statement.confirmed:
        found["confirmed"] = statement.confirmed
    if statement.combinations:
        found["combinations"] = statement.combinations
    if statement.restricted:
        found["combinations_tried"] = statement.restricted
    if statement.variants:
        found["rules_of_other_calls"] = [_rule_dict(statement, rule) for rule in statement.variants]
    if statement.refused:
        found["refused"] = statement.refused
    return found


GRAMMAR = {
    "placement": "R | S(DIM) | P(KIND)",
    "R": "replicated: every device holds all of it",
    "S(DIM)": "sharded along that dim, counted from 0; DIM is a number, or words that `python` spells out",
    "P(KIND)": "pending: it is the sum, avg, max, min or prod (KIND) of what the devices hold",
    "shards": "even: all devices hold equally much; uneven: they do not; empty: some hold nothing. Those are listed on"
    " which calls showed the rule to hold, and none refuted it",
    "bears_out": "so many calls were run on which it holds; on none it fails",
}
"""How placements are written, and what the keys of a rule mean."""


def notation(statement: Statement) -> dict[str, Any]:
    """How to read the rules: the grammar, the tensors, the words for dims and conditions as Python."""
    rules = statement.every_rule
    words: dict[str, str] = {}
    for rule in rules:
        terms = [t.dim for t in (*rule.inputs, *rule.outputs) if isinstance(t, ShardedOn) and not t.broadcasts]
        words.update({e.text: e.code for e in (*terms, *rule.conditions) if e.text != e.code})
    found: dict[str, Any] = dict(GRAMMAR)
    if any(rule.reference is not None for rule in rules):
        found["d"] = "a dim: of the tensor that a rule names under `d`, for each for which its condition holds"
    if any(isinstance(t, ShardedOn) and t.broadcasts for rule in rules for t in rule.inputs):
        found["broadcasting"] = "dims are aligned from the right; an input of size 1 along d, or without it, is R"
    if words:
        found["python"] = words
        found["names"] = (
            "rank[i], shape[i], dtypes[i]: of tensor i of the rule; others are the operator's arguments, dims >= 0"
        )
    return found


def _whose_dims(statement: Statement, rule: Rule) -> str:
    """Which tensor's dims `d` runs over, and whose rank `ndim` is."""
    if rule.reference == FRAME:
        return "of the shape that the inputs are broadcast to; ndim is its rank"
    assert rule.reference is not None
    names = statement.names(rule) or _argument_names(statement, rule)
    return f"of {names[rule.reference]}; ndim is its rank"


def _argument_names(statement: Statement, rule: Rule) -> tuple[str, ...]:
    for sample in statement.samples:
        if len(sample.tensors) == len(rule.inputs):
            return sample.tensor_names(statement.operator)
    return tuple(f"input {i}" for i in range(len(rule.inputs)))


def _rule_dict(statement: Statement, rule: Rule) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tensors": list(statement.names(rule) or _argument_names(statement, rule)),
        "inputs": [str(term) for term in rule.inputs],
        "output": [str(term) for term in rule.outputs],
    }
    if rule.reference is not None:
        found["d"] = _whose_dims(statement, rule)
    if rule.conditions:
        found["condition"] = condition_text(rule)
    if rule.justification:
        found["justification"] = rule.justification
    if rule.conditions:
        found["counterexamples"] = list(rule.counterexamples)
    if any(isinstance(t, ShardedOn) or t.kind == "S" for t in (*rule.inputs, *rule.outputs)):
        found["shards"] = list(GRADES[: GRADES.index(rule.grade) + 1])
    if rule.witnesses:
        found["bears_out"] = rule.witnesses
    return found


def condition_text(rule: Rule) -> str:
    """All conditions as one."""
    texts = [str(condition) for condition in rule.conditions]
    return " and ".join(f"({text})" if " or " in text and len(texts) > 1 else text for text in texts)


def signature(operator: Operator) -> str:
    """``torch.cross(input, other, *, dim=-1)``."""
    parts: list[str] = []
    for argument in operator.arguments:
        if argument.keyword_only and "*" not in parts:
            parts.append("*")
        default = "" if argument.default is REQUIRED else f"={argument.default!r}"
        parts.append(f"{argument.name}{default}")
    return f"{operator.name}({', '.join(parts)})"


def plain(value: Any) -> Any:
    """A value as JSON and YAML have it: tuples as lists, what they do not know as its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _one_or_all(values: list[Any]) -> Any:
    """As the report is read: nothing, the one, or all of them."""
    return None if not values else values[0] if len(values) == 1 else values


def _distinct(values: Sequence[Any]) -> list[Any]:
    return list({repr(value): value for value in values}.values())


# ---- YAML and JSON -------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Blocks, but short lists of plain values on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # Lists stand indented under their key.
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flat = all(not isinstance(v, dict) and _flat(v) for v in values)
    # A sentence reads better on a line of its own; short words and numbers stand side by side.
    short = len(str(values)) <= _FLOW_WIDTH and not any(isinstance(v, str) and " " in v for v in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat and short)


def _flat(value: Any) -> bool:
    return not isinstance(value, dict) and (not isinstance(value, list) or all(_flat(item) for item in value))


_Dumper.add_representer(list, _represent_list)


def as_yaml(statement: Statement) -> str:
    """The report as YAML."""
    blocks = [
        yaml.dump(
            {key: value}, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=116, allow_unicode=True
        )
        for key, value in as_dict(statement).items()
    ]
    # A blank line before each part makes the file readable; the first two belong together.
    return "".join(blocks[:2]) + "".join(f"\n{block}" for block in blocks[2:])


def yaml_text(facts: Mapping[str, Any]) -> str:
    """Plain data as YAML, in the same style."""
    return str(
        yaml.dump(dict(facts), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=116, allow_unicode=True)
    )


def as_json(statement: Statement) -> str:
    """The report as JSON, with the keys of the YAML."""
    return json.dumps(as_dict(statement), indent=2, ensure_ascii=False)


# ---- the rule book ---------------------------------------------------------------------------------------------------


def rule_book_line(statement: Statement) -> str:
    """The line, or lines, for our rule book: ``rule("linalg_cross", "... k, ... k -> ... k ; k: whole ; ...")``."""
    name = _book_name(statement.operator)
    lines = []
    for text, when in _rule_texts(statement):
        lines.append(f'rule("{name}", "{text}")' + (f"  # {when}" if when else ""))
    return "\n".join(lines)


def _book_name(operator: Operator) -> str:
    parts = (operator.overload or operator.name).split(".")
    return parts[1] if operator.overload and len(parts) > 1 else parts[-1]


def _rule_texts(statement: Statement) -> list[tuple[str, str]]:
    """The factor lines with the statement's transfers, each read back to be sure that the rule book can."""
    found = []
    for line, when in statement.factor_lines:
        pattern, sizes = parse_rule(line)
        transfers = list(pattern.transfers)
        for transfer in _transfers(statement):
            counts = (len(transfer.operands), len(transfer.results))
            if counts == (len(pattern.operands), len(pattern.results)) and not _covered(transfer, transfers):
                transfers.append(transfer)
        text = str(RulePattern(pattern.operands, pattern.results, pattern.notes, tuple(transfers)))
        text += f" | {' '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""
        if str(parse_rule(text)[0]) != text.split(" | ")[0]:
            raise DiscoverError("a rule was written that does not read back as itself", text=text)
        found.append((text, when))
    return found


def _transfers(statement: Statement) -> list[Transfer]:
    """Rules without conditions about pending tensors only; those that hold for every kind as one for any."""
    rows: list[tuple[tuple[Placement, ...], tuple[Placement, ...]]] = []
    for rule in statement.rules:
        terms = (*rule.inputs, *rule.outputs)
        pending = [t for t in terms if isinstance(t, Placement) and t.kind != "S"]
        if rule.unconditional and not rule.all_replicated and len(pending) == len(terms):
            count = len(rule.inputs)
            if any(t.kind == "P" for t in pending[:count]):
                rows.append((tuple(pending[:count]), tuple(pending[count:])))
    kinds: dict[tuple[tuple[str, ...], tuple[str, ...]], set[str]] = {}
    for inputs, outputs in rows:
        if (kind := _single_kind(inputs, outputs)) is not None:
            kinds.setdefault(_for_any(inputs, outputs), set()).add(kind)
    # Rules for averages are folded into those for sums, so sums stand for both.
    always = {key for key, seen in kinds.items() if seen | {"avg"} == set(REDUCTIONS)}
    found: dict[Transfer, None] = {}
    for inputs, outputs in rows:
        key = _for_any(inputs, outputs)
        if _single_kind(inputs, outputs) is not None and key in always:
            found[Transfer(*key)] = None
        else:
            found[Transfer(tuple(map(str, inputs)), tuple(map(str, outputs)))] = None
    return list(found)


def _single_kind(inputs: tuple[Placement, ...], outputs: tuple[Placement, ...]) -> str | None:
    kinds = {p.reduce for p in (*inputs, *outputs) if p.kind == "P"}
    return kinds.pop() if len(kinds) == 1 else None


def _for_any(inputs: tuple[Placement, ...], outputs: tuple[Placement, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    states = [tuple("P(any)" if p.kind == "P" else "R" for p in side) for side in (inputs, outputs)]
    return states[0], states[1]


def _covered(transfer: Transfer, known: Sequence[Transfer]) -> bool:
    """Whether a line of the table already says this."""
    kinds = {state for state in (*transfer.operands, *transfer.results) if state != "R"}
    as_any = Transfer(
        tuple("P(any)" if s != "R" else s for s in transfer.operands),
        tuple("P(any)" if s != "R" else s for s in transfer.results),
    )
    return transfer in known or (len(kinds) == 1 and as_any in known)


# ---- text ------------------------------------------------------------------------------------------------------------


def as_text(statement: Statement) -> str:
    """What the command prints: the rules, aligned, and what they rest on."""
    operator = statement.operator
    overload = f"   ({operator.overload})" if operator.overload else ""
    lines = [f"{signature(operator)}{overload}"]
    if statement.makes:
        lines += _made_of(statement.makes)
    if statement.refused:
        return "\n".join([*lines, "", f"  cannot judge: {statement.refused}"]) + "\n"
    about = [statement.category, *statement.properties]
    if any(about):
        lines.append("  " + "; ".join(word for word in about if word))
    lines += ["", *(_aligned([_rule_columns(rule) for rule in statement.rules], "  ") or ["  no rule was found"])]
    why = [rule for rule in statement.rules if rule.conditions and (rule.justification or rule.counterexamples)]
    if why:
        lines += ["", "  why the conditions"]
    for rule in why:
        lines.append(f"    {condition_text(rule)}: {rule.justification}".rstrip(": "))
        lines += [f"      otherwise {case}" for case in rule.counterexamples[:2]]
    book = rule_book_line(statement)
    if book:
        lines += ["", "  rule book", *(f"    {line}" for line in book.splitlines())]
    lines += ["", *_footer(statement)]
    return "\n".join(lines) + "\n"


def _made_of(makes: Sequence[Made]) -> Iterator[str]:
    """The ATen calls that an operator makes, by what DTensor has for them."""
    for said in dict.fromkeys(made.dtensor for made in makes):
        calls = ", ".join(made.overload for made in makes if made.dtensor == said)
        yield f"  makes {calls}: DTensor {said}"


def _rule_columns(rule: Rule) -> tuple[str, str, str]:
    left = ", ".join(map(str, rule.inputs))
    right = ", ".join(map(str, rule.outputs))
    notes = [f"WHEN {condition_text(rule)}"] if rule.conditions else []
    sharded = any(isinstance(t, ShardedOn) or t.kind == "S" for t in (*rule.inputs, *rule.outputs))
    if sharded and rule.grade != "empty":
        notes.append("(even shards only)" if rule.grade == "even" else "(not on empty shards)")
    return left, f"-> {right}", "  ".join(notes)


def _aligned(rows: Sequence[tuple[str, ...]], indent: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [(indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths))).rstrip() for row in rows]


def _footer(statement: Statement) -> Iterator[str]:
    worlds = ", ".join(map(str, statement.worlds))
    seen = [f"{len(statement.samples)} samples"]
    if statement.combinations:
        seen.append(f"{statement.combinations} combinations")
    if worlds:
        seen.append(f"on {worlds} devices")
    right, every = statement.held_out
    if statement.fresh:
        seen.append(f"attacked with {statement.fresh} fresh calls")
    if every:
        seen.append(f"held out: {right} of {every} agree")
    yield "  tested on " + ", ".join(seen)
    if statement.confirmed:
        yield f"  confirmed: {statement.confirmed}"
    if statement.restricted:
        yield f"  too many combinations for all, tried: {statement.restricted}"
    other = [f"{len(rule.inputs)} tensors: {rule}" for rule in statement.variants if not rule.all_replicated]
    for title, items in (
        ("calls with another number of tensors", other),
        ("held-out cases that disagree", list(statement.disagreements)),
        ("refuted, so narrowed or dropped", list(statement.refuted)),
        ("not covered by a rule", list(statement.leftover)),
        ("dropped, they say nothing", [f"{rule}: {reason}" for rule, reason in statement.dropped]),
    ):
        if items:
            yield f"  {title}"
            yield from (f"    {item}" for item in items[:5])
            if len(items) > 5:
                yield f"    and {len(items) - 5} more"
