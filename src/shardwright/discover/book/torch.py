"""Our ATen rule book against what is found by execution: ``shardwright discover --book torch``.

An op is looked at in two ways.  Every factor that its rule lets be split is split, on virtual meshes of two and three
devices, uneven shards included, and the lowered program must give what the whole gives: that is the proof of what a
device computes, local forms and sizes included (`torch_mesh`).  And the oracle runs the op on every combination of
placements: rows that the rule claims must be among those that hold, and what holds beyond them is taken up or explained
in the record.  There a device computes what the frontend's ``prepare`` does on a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from ...errors import DiscoverError, ShardwrightError
from ...frontends.torch import prepare
from ...frontends.torch.describe import describe
from ...frontends.torch.kernels import KERNELS
from ...frontends.torch.recording.sizes import local_sizes
from ...frontends.torch.signatures import find_op, op_name, signature
from ...ir.graph import TensorType
from ...rules.registry import find, lookup, records
from ...spec.rule import OpShardingRule
from ..inputs.adversarial import shuffled
from ..isolate import run_isolated
from ..judging.oracle import refute
from ..operator import Operator, Sample, Slot
from ..table import FEWEST
from ..torch.ops import TORCH, roles_of
from ..torch.private import registered_names
from .compare import Comparison, Study, compare, transfer_rows
from .names import PREFIXES
from .torch_calls import AtenCall, Calls, calls_of, quiet
from .torch_mesh import Split

COMBINATIONS = 1500
"""Input combinations that the oracle tries for one call."""
STUDIED = 3
"""Calls of an op that the oracle looks at; all of them are split on meshes."""

NARROW = ("f32", "f16", "bf16", "c64")
"""Types in which parts of a sum do not add up to it exactly enough."""

Progress = Callable[[Comparison, int, int], None]


def written_ops() -> list[str]:
    """Ops with a record of their own that this version of PyTorch has."""
    named = [record.name for record in records() if record.name.startswith(PREFIXES)]
    return [name for name in named if not name.startswith("aten.") or describe(name) is not None]


def made_ops() -> list[str]:
    """Functional overloads whose record is made from tags and schema."""
    known = set(written_ops())
    found = dict.fromkeys(name for name in functional_overloads() if name not in known and find(name) is not None)
    return list(found)


@cache
def functional_overloads() -> tuple[str, ...]:
    """Every ATen overload that writes to none of its arguments, in order of names.

    Only the registry knows them all; a packet lists its overloads once it is asked for by name.
    """
    found = []
    for registered in sorted(registered_names()):
        namespace, _, name = registered.partition("::")
        packet, _, overload = name.partition(".")
        try:
            op = getattr(getattr(torch.ops.aten, packet), overload or "default") if namespace == "aten" else None
        except (AttributeError, RuntimeError):  # of another kind than tensors'
            continue
        if op is not None and not signature(op).mutates:
            found.append(op_name(op))
    return tuple(dict.fromkeys(found))


def check_book(
    ops: Sequence[str] | None = None, jobs: int = 1, progress: Progress = lambda comparison, done, of: None
) -> list[Comparison]:
    """Compare every op of the ATen rule book, or these, each in a process of its own."""
    names = list(ops) if ops else [*written_ops(), *made_ops()]
    for name in names:
        lookup(name)
    torch.set_num_threads(1)
    calls = calls_of(names)
    found: list[Comparison] = []
    fatal: list[str] = []
    for outcome in run_isolated(_tasks(names, calls, oracle=True), jobs=jobs, seconds=600.0):
        if outcome.failure:
            fatal.append(outcome.key)
        else:
            found.append(_from_data(outcome.value))
            progress(found[-1], len(found), len(names))
    # Kernels that do not look at the shapes they are given bring the process down: those are shown what the book says.
    for outcome in run_isolated(_tasks(fatal, calls, oracle=False), jobs=jobs, seconds=600.0):
        failed = Comparison(outcome.key, 0, 0, (outcome.failure,), (), "")
        found.append(failed if outcome.failure else _from_data(outcome.value))
        progress(found[-1], len(found), len(names))
    return sorted(found, key=lambda comparison: names.index(comparison.op))


def _tasks(names: Sequence[str], calls: Calls, oracle: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    for op in names:
        yield op, partial(_compared, op, calls[op], oracle)


def _compared(op: str, calls: Sequence[AtenCall], oracle: bool) -> dict[str, Any]:
    return _as_data(compare_calls(op, calls) if oracle else only_claims(op, calls))


def _as_data(comparison: Comparison) -> dict[str, Any]:
    return {name: getattr(comparison, name) for name in Comparison.__dataclass_fields__}


def _from_data(data: dict[str, Any]) -> Comparison:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return Comparison(**fields)


def compare_calls(op: str, calls: Sequence[AtenCall]) -> Comparison:
    """Everything about one op on these calls."""
    with quiet():
        ruled, uncovered = _ruled(op, calls)
        splits, wrong = split_all(ruled)
        studies = [study for call, rule in ruled[: 2 * STUDIED] if (study := study_of(call, rule)) is not None]
        found = compare(op, studies[:STUDIED], most=COMBINATIONS, compounds=False)
    if not ruled:
        wrong.append("no call of it is known that the rule covers")
    wrong = list(dict.fromkeys([*wrong, *found.wrong]))
    calls_seen = max(found.calls, len(ruled))
    return replace(found, calls=calls_seen, wrong=tuple(wrong), splits=splits, uncovered=uncovered)


def only_claims(op: str, calls: Sequence[AtenCall]) -> Comparison:
    """What the book claims, and nothing else."""
    rows = 0
    with quiet():
        ruled, uncovered = _ruled(op, calls)
        splits, wrong = split_all(ruled)
        for call, rule in ruled:
            study = study_of(call, rule) if rule.transfers else None
            if study is None:
                continue
            operator, sample, variants, _ = study
            for inputs, outputs in transfer_rows(rule, sample):
                if any(p.kind == "P" and array.size < FEWEST for p, array in zip(inputs, sample.tensors)):
                    continue
                rows += 1
                bad = [refute(operator, (sample, *variants), inputs, o, p, worlds=(2,)) for o, p in enumerate(outputs)]
                wrong += [str(found) for found in bad if found is not None]
    if not ruled:
        wrong.append("no call of it is known that the rule covers")
    return Comparison(op, len(ruled), rows, tuple(wrong), (), "", splits, uncovered)


def _ruled(op: str, calls: Sequence[AtenCall]) -> tuple[list[tuple[AtenCall, OpShardingRule]], int]:
    """The calls that the record covers with the rule of each, and how many it does not cover."""
    record = lookup(op)
    ruled = []
    for call in calls:
        shapes = [tuple(tensor.shape) for tensor in call.tensors]
        try:
            rule = record.bind(shapes, [result.shape for result in call.results], call.attrs, call.slots)
        except ShardwrightError:
            continue
        ruled.append((call, rule))
    return ruled, len(calls) - len(ruled)


def split_all(ruled: Sequence[tuple[AtenCall, OpShardingRule]]) -> tuple[int, list[str]]:
    """Every call split by every factor: how many runs, and what went wrong."""
    runs, wrong = 0, []
    for call, rule in ruled:
        for where, bad in Split(call, rule).check():
            runs += 1
            if bad:
                wrong.append(f"split {where}: {bad}, of {rule}")
    return runs, wrong


# ---- the oracle's side --------------------------------------------------------------------------------------


def study_of(call: AtenCall, rule: OpShardingRule) -> Study | None:
    """The call as an operator of its tensors alone, attributes fixed; None if rounding would hide what is true."""
    if any(result.dtype in NARROW for result in call.results):
        return None
    try:
        arrays = tuple(TORCH.array(tensor.contiguous()).copy() for tensor in call.tensors)
    except DiscoverError:
        return None
    if not arrays:
        return None
    form = signature(find_op(call.op)) if not call.op.startswith("random.") else None
    sized = _sized(call)
    operator = Operator(
        call.op, _runner(call), TORCH, random=form is not None and form.random and call.attrs.get("dropout_p") != 0.0,
        overload=_overload(call.op),
    )  # fmt: skip
    roles = roles_of(arrays, _names(call, form), operator.short_name)
    slots = tuple(map(Slot, range(len(arrays))))
    kwargs = {"shape": list(call.results[0].shape)} if sized and call.results[0].shape else {}
    sample = Sample(slots, kwargs, arrays, roles, call.label)
    # What a backward op is given belongs together: mixed, it overflows.
    mixed = None if "backward" in call.op else shuffled(operator, sample)
    return operator, sample, [mixed] if mixed is not None else [], rule


def _overload(op: str) -> str:
    return op if op.count(".") > 1 else f"{op}.default"


def _names(call: AtenCall, form: Any) -> tuple[str, ...]:
    """The parameter that each tensor is."""
    if form is None:
        return ("",) * len(call.tensors)
    holders = [parameter.name for parameter in form.parameters if parameter.kind in (0, 1, 2)]
    counts = call.slots or (1,) * len(call.operands)
    return tuple(name for name, count in zip(holders, counts) for _ in range(count or 0))


def _sized(call: AtenCall) -> bool:
    """Whether the first result's size is told to the op, so that a device must be told its own."""
    if call.op in KERNELS:
        return True
    first, *rest = call.results
    other = TensorType(tuple(size + 1 for size in first.shape), first.dtype)
    attrs = dict(call.attrs)
    return local_sizes(call.op, attrs, [first, *rest]) != local_sizes(call.op, attrs, [other, *rest])


def _runner(call: AtenCall) -> Callable[..., Any]:
    @cache
    def prepared(shape: tuple[int, ...] | None) -> Any:
        first, *rest = call.results
        return prepare(call.op, call.attrs, [first if shape is None else TensorType(shape, first.dtype), *rest])

    def run(*flat: Any, shape: Sequence[int] | None = None) -> tuple[Any, ...]:
        made: tuple[Any, ...] = prepared(None if shape is None else tuple(shape))(call.filled(flat))
        return made

    return run
