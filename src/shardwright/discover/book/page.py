"""A page that holds our ATen book against DTensor's registrations: ``--book torch --out docs/aten-book.md``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...errors import ShardwrightError
from ...frontends.torch.random import REDRAWN
from ...frontends.torch.signatures import Signature, find_op, functional_form, op_name, signature
from ...rules.registry import find
from ...spec.op_record import OpRecord
from ..audit.dtensor import overload_named, registered_overloads
from ..torch.private import has_kernel
from .compare import Comparison
from .torch import made_ops, written_ops

_WIDTH = 110
_MANY = 400
"""So many overloads of one group are named by their op alone."""


def page(comparisons: Sequence[Comparison] = ()) -> str:
    """Markdown: what was run, which ops have a record here and there, and why some have none here."""
    ours = {op: lookup for op in (*written_ops(), *made_ops()) if (lookup := find(op)) is not None}
    theirs = {op_name(overload_named(name)) for name in registered_overloads()}
    both, missing = sorted(theirs & set(ours)), sorted(theirs - set(ours))
    alone = sorted(op for op in ours if op not in theirs)
    version = str(torch.__version__).split("+")[0]
    lines = [
        "# The ATen book, and DTensor's",
        "",
        f"Written by `shardwright discover --book torch --out docs/aten-book.md` with PyTorch {version}.",
        "",
        "An op is an ATen overload as it stands in captured graphs; DTensor's are the overloads that its sharding",
        "propagator has a strategy for, in-place and `out` forms included.",
        "",
        "| ops | |",
        "|---|---|",
        f"| with a record in our book | {len(ours)} |",
        f"| of these, written down | {len(written_ops())} |",
        f"| of these, made from tags and schemas | {len(made_ops())} |",
        f"| registered in DTensor | {len(theirs)} |",
        f"| in both | {len(both)} |",
        f"| only in DTensor | {len(missing)} |",
        f"| only in ours | {len(alone)} |",
        "",
        *_as_run(comparisons),
        "## Only in DTensor, and why",
        "",
        *_grouped({op: _why_not_here(op) for op in missing}),
        "## In both, by where our record comes from",
        "",
        *_grouped({op: _origin(ours[op]) for op in both}),
        "## Only in ours, by where the record comes from",
        "",
        *_grouped({op: _origin(ours[op]) for op in alone}),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _as_run(comparisons: Sequence[Comparison]) -> list[str]:
    if not comparisons:
        return []
    count = len(comparisons)
    agree = sum(not c.wrong and not c.beyond for c in comparisons)
    explained = sum(bool(c.beyond) and not c.unexplained for c in comparisons)
    return [
        "## As run",
        "",
        "Every factor of every rule is split on virtual meshes of two and three devices, uneven and empty shards",
        "included, and the lowered program is compared with the whole; rows of rules are held against the oracle.",
        "",
        "| | |",
        "|---|---|",
        f"| ops | {count} |",
        f"| calls | {sum(c.calls for c in comparisons)} |",
        f"| splits run on a mesh | {sum(c.splits for c in comparisons)} |",
        f"| claimed rows held against the oracle | {sum(c.rows for c in comparisons)} |",
        f"| ops with a claim that is wrong | {sum(bool(c.wrong) for c in comparisons)} |",
        f"| ops of which the oracle finds no more than the book says | {agree} |",
        f"| ops of which it finds more, with the reason in the record | {explained} |",
        f"| ops of which it finds more, without a reason | {sum(c.unexplained and not c.wrong for c in comparisons)} |",
        "",
    ]


def _grouped(said: dict[str, str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for op, why in said.items():
        groups.setdefault(why, []).append(op)
    lines: list[str] = []
    for why, ops in sorted(groups.items(), key=lambda group: -len(group[1])):
        names = sorted(ops) if len(ops) < _MANY else sorted({_bare(op) for op in ops})
        lines += [f"**{why}** ({len(ops)})", "", *_wrapped(names), ""]
    return lines


def _bare(op: str) -> str:
    """Without overload and mark of writing: one name for ``add_.Tensor`` and ``add.out``."""
    name = op.split(".")[1]
    return name if name.endswith("__") else name.removesuffix("_")


def _wrapped(ops: Sequence[str]) -> list[str]:
    lines = [""]
    for op in ops:
        text = f"`{op.removeprefix('aten.')}`"
        if len(lines[-1]) + len(text) > _WIDTH:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{text}"
    return [f"{line}," for line in lines[:-1]] + lines[-1:]


def _origin(record: OpRecord) -> str:
    """The file of `rules.aten`, or how it is made."""
    if record.same_as is not None:
        return "the core vocabulary, under another name (`same`)"
    rule: Any = record.rule
    rule = rule.func if isinstance(rule, partial) else rule
    file = "matrix" if isinstance(rule, str) else str(rule.__module__).rpartition(".")[2]
    if record.name.startswith("random."):
        return "`rules/random.py`"
    made = {"lists": "made from schemas (`lists`)"}
    if file == "pointwise" and record.name not in set(written_ops()):
        return "made from tags (`pointwise`)"
    return made.get(file, f"`rules/aten/{file}.py`")


def _why_not_here(op: str) -> str:
    form = signature(find_op(op))
    if form.mutates:
        return _written_to(form)
    tags = {tag.name for tag in form.op.tags}
    if op in REDRAWN or form.random:
        if "attention" in op:
            return "one device's kernel of an op that capture keeps whole"
        return "random: capture writes it in terms of `random.uniform` and `random.normal`, which have records"
    if "attention" in op or "cudnn" in op or "miopen" in op or "mkldnn" in op:
        return "one device's kernel of an op that capture keeps whole"
    if form.composite:
        return "composite: capture records what it is made of"
    if "dynamic_output_shape" in tags or "data_dependent_output" in tags:
        return "its shape, or a number, depends on data: capture refuses it"
    if not any("Tensor" in str(result.real_type) for result in form.op._schema.returns):
        return "gives no tensor"
    if not _computed_here(form):
        return "never captured: programs are captured for the CPU, where it is made of other ops"
    return "no record yet: runs replicated, and is named"


def _written_to(form: Signature) -> str:
    try:
        plain = functional_form(form.name)
    except ShardwrightError:
        plain = None
    if plain is None:
        return "writes to an argument, and capture has no functional form of it"
    if find(plain.name) is None and plain.name not in REDRAWN and not plain.composite:
        return "writes to an argument; its functional form has no record either"
    return "writes to an argument: capture turns it into its functional form"


def _computed_here(form: Signature) -> bool:
    name = form.op.name()
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
    return any(has_kernel(name, key) for key in keys)
