"""From an operator's name to its statement: gather calls, check each, synthesize, analyse.

`discover` is what the command line calls.  `discover_strategies` and `analyze_and_synthesize` are the two doors
for one call and for one shape with a swept dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import DiscoverError, front
from .analyse import category, factor_line, properties, varying
from .calls.fresh import Drawer
from .calls.named import dims_by_behaviour
from .calls.widen import describe, runs, widened
from .inputs.adversarial import redraw, shuffled
from .inputs.registry import Generator, generator_named, generators_for, standard_generators
from .judging.confirm import confirm
from .judging.oracle import MOST_COMBINATIONS, NO_EVEN_SHARDS, WORLDS, check
from .operator import Argument, Array, NumpyLibrary, Operator, Sample, Slot
from .statement import Statement
from .synthesis.attack import FULL, LIGHT, SWIFT, Strength
from .synthesis.cases import dim_arguments
from .synthesis.synthesize import synthesize, without
from .table import Table, folded


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried: calls taken as they are, calls made from them, and other numbers for each call."""

    samples: int = 16
    more: int = 24
    variants: int = 12
    worlds: tuple[int, ...] = WORLDS
    combinations: int = MOST_COMBINATIONS
    """Input combinations tried exhaustively for one call."""
    rich: int = 24
    """Larger calls that are tried in full, too."""
    attack: Strength | None = FULL
    """Fresh calls that rules must withstand; None for none."""


THOROUGH = Effort()
QUICK = Effort(samples=6, more=4, variants=2, combinations=8_000, rich=12, attack=LIGHT)
"""Fewer calls."""
SURVEY = replace(QUICK, rich=4, attack=SWIFT)
"""For all operators at once: a survey.  What is to be relied on is studied for itself."""


@front
def discover(
    target: object, effort: Effort = THOROUGH, calls: Sequence[str] = (), backward: bool = False
) -> list[Statement]:
    """What is found of an operator, one statement for each ATen overload that its samples call.

    A function that makes several ATen calls is studied as it stands.  `calls` are calls to start from, as text:
    ``"op(f32[8, 6], dim=1)"``; `backward` asks for the rule of the gradient.
    """
    from .torch.own import gradient_of, torch_operator_of, with_mutations, written_call
    from .torch.samples import samples_of

    operator = torch_operator_of(target)
    if calls:
        samples = [written_call(operator, text) for text in calls]
    else:
        samples = samples_of(operator, max(effort.samples, _AT_HAND))
    operator = with_mutations(operator, samples)
    if backward:
        gradient, pulled = gradient_of(operator, samples)
        return [study(gradient, pulled, effort)]
    return _studied(operator, samples, effort)


def discover_entry(name: str, effort: Effort = SURVEY) -> list[Statement]:
    """The same for an entry of PyTorch's OpInfo database, variants such as ``div.floor_rounding`` included."""
    from .torch.samples import opinfo_operator, samples_from_opinfo

    return _studied(opinfo_operator(name), samples_from_opinfo(name, limit=max(effort.samples, _AT_HAND)), effort)


def _studied(operator: Operator, samples: Sequence[Sample], effort: Effort) -> list[Statement]:
    from .torch.composite import calls_made
    from .torch.ops import resolved, study_of
    from .torch.own import with_facts

    made = [study_of(operator, sample) for sample in samples] if not operator.overload else []
    groups: dict[str, tuple[Operator, list[Sample]]] = {}
    for found in made:
        if found is not None and found[1].tensors:
            groups.setdefault(found[0].overload, (found[0], []))[1].append(found[1])
    if made and all(made) and groups:
        ordered = sorted(groups.values(), key=lambda group: -len(group[1]))
        return [study(with_facts(replace(aten, name=operator.name)), calls, effort) for aten, calls in ordered]
    if samples:
        operator = resolved(operator, samples[0])
    statement = study(with_facts(operator), samples, effort)
    return [statement if operator.overload else replace(statement, makes=calls_made(operator, samples))]


_AT_HAND = 48
"""Calls taken from a database of samples: some are tried in full, the rules are attacked with the others."""


def study(operator: Operator, samples: Sequence[Sample], effort: Effort = THOROUGH) -> Statement:
    """Check the first samples, and calls made from them, state what holds, and attack it with all."""
    if not samples:
        return Statement(operator, (), refused="no sample of a call is known")
    named = dims_by_behaviour(operator, samples)
    if named:
        operator = replace(operator, facts={**operator.facts, "dims": named})
    samples, others = samples[: effort.samples], samples[effort.samples :]
    calls = widened(operator, _telling(samples), effort.more)
    drawer = Drawer(operator, calls)
    calls += [*drawer.swept(calls, effort.more), *drawer.in_dtypes(calls, 4)]
    calls += drawer.rich(calls, effort.rich)
    drawn = _generators(operator, effort)
    tables = [_checked(operator, call, drawn, effort) for call in calls]
    return state(operator, tables, drawn, effort, drawer, others)


def _telling(samples: Sequence[Sample]) -> list[Sample]:
    """Without calls on empty tensors or single numbers, unless there is nothing else: they teach little."""
    rich = [s for s in samples if all(a.size for a in s.tensors) and any(a.size > 1 for a in s.tensors)]
    poor = [s for s in samples if not any(s is other for other in rich)]
    return [*rich, *poor[: 1 if rich else None]]


def state(
    operator: Operator,
    tables: Sequence[Table],
    drawn: Sequence[Generator],
    effort: Effort,
    drawer: Drawer | None = None,
    others: Sequence[Sample] = (),
) -> Statement:
    """The statement that these tables make."""
    live = [table for table in tables if not table.refused]
    if not live:
        reasons = dict.fromkeys(table.refused for table in tables)
        return Statement(operator, (), samples=tuple(t.sample for t in tables), refused="; ".join(reasons))
    found = synthesize(operator, live, effort.attack, drawer, others)
    dims = dim_arguments(operator, live, found.inserts)
    standard = {generator.name for generator in standard_generators()}
    again = confirm(operator, live, found.claimed if effort.attack is not None else None)
    if effort.attack is not None and again.table is not None:
        found = without(found, again.table, again.failed)
    return Statement(
        operator,
        found.rules,
        variants=found.variants,
        tensors=found.tensors,
        category=category(found.situations, found.rules, dims),
        dim_parameters=dims,
        properties=properties(operator, live, found.rules),
        factor_lines=_factor_lines(operator, live),
        samples=tuple(table.sample for table in live),
        fresh_calls=_small(found.fresh_calls),
        swept=varying([table.sample.values(operator) for table in live]),
        generators=tuple((g.name, g.about) for g in drawn if g.name in standard),
        adversarial=tuple((g.name, g.about) for g in drawn if g.name not in standard),
        worlds=effort.worlds,
        dropped=_dropped(operator, live),
        leftover=found.leftover,
        held_out=found.held_out,
        disagreements=again.failures if effort.attack is None else (),
        fresh=found.fresh,
        refuted=found.refuted,
        confirmed=f"{again.pairs} pairs of rows on a 2x2 mesh, {again.rows} rows in float32",
        restricted="; ".join(dict.fromkeys(table.restricted for table in live if table.restricted)),
        inserts=found.inserts,
        combinations=sum(table.combinations for table in live),
    )


_SHOWN_ELEMENTS, _SHOWN_CALLS = 128, 60


def _small(calls: Sequence[Sample]) -> tuple[Sample, ...]:
    """Fresh calls that can be written out: every other so many, of tensors that are small and not empty."""
    small = [c for c in calls if all(0 < array.size <= _SHOWN_ELEMENTS for array in c.tensors)]
    return tuple(small[:: -(-len(small) // _SHOWN_CALLS)]) if small else ()


def _generators(operator: Operator, effort: Effort) -> list[Generator]:
    """Those made for the operator, the standard ones, and some of those for all; only few if it must be quick."""
    every = generators_for(operator.short_name)
    own = [g for g in every if "*" not in g.ops]
    common = [g for g in every if "*" in g.ops]
    if effort.variants < len(standard_generators()):
        # Samples are normal numbers already; ties bring zeros, and results that differ.
        return [*own[:1], *common, generator_named("make_randn")][: effort.variants]
    room = max(0, effort.variants - len(standard_generators()))
    # Every other one, so that NaN and Inf, which come last, are among them.
    return [*own, *standard_generators(), *common[:: max(1, len(common) // max(room, 1))][:room]]


def _checked(operator: Operator, sample: Sample, drawn: Sequence[Generator], effort: Effort) -> Table:
    variants: list[Sample] = []
    special: list[Sample] = []
    for generator in drawn:
        again = redraw(operator, sample, generator)
        if again is not None:
            (special if generator.special else variants).append(again)
    # Numbers of the sample itself in another order keep to its domain whatever that is.
    mixed = shuffled(operator, sample)
    if mixed is not None:
        variants.append(mixed)
    return check(operator, sample, variants=variants, special=special, worlds=effort.worlds, most=effort.combinations)


def _factor_lines(operator: Operator, tables: Sequence[Table]) -> tuple[tuple[str, str], ...]:
    """The factor rule of each call; calls with the same rule stand for one another."""
    lines: dict[str, str] = {}
    for table in tables:
        if table.valid and all(size > 1 for shape in table.sample.shapes for size in shape):
            line = factor_line(table)
            if line:
                lines.setdefault(line, describe(operator, table.sample))
    return tuple(lines.items())


def _dropped(operator: Operator, tables: Sequence[Table]) -> tuple[tuple[str, str], ...]:
    """Rows that passed without saying anything, and nowhere else said something."""
    kept = {(inputs, p) for table in tables for inputs, outs in table.valid.items() for out in outs for p in out}
    found: dict[str, str] = {}
    for table in tables:
        for (inputs, output, placement), reason in table.dropped.items():
            if reason != NO_EVEN_SHARDS and (inputs, placement) not in kept:
                found.setdefault(f"{', '.join(map(str, inputs))} -> {placement} (result {output})", reason)
    return tuple(list(found.items())[:24])


# ---- the doors for one call --------------------------------------------------------------------------------


def operator_of(op: Callable[..., Any] | str, op_name: str = "") -> Operator:
    """An operator from a function of torch tensors or of NumPy arrays, or from its name."""
    module = getattr(op, "__module__", "") or ""
    if isinstance(op, np.ufunc) or module.split(".")[0] == "numpy":
        assert callable(op)
        return Operator(op_name or f"numpy.{op.__name__}", op, NumpyLibrary(), _python_arguments(op))
    from .torch.ops import torch_operator

    return replace(torch_operator(op), name=op_name) if op_name else torch_operator(op)


def _python_arguments(function: Callable[..., Any]) -> tuple[Argument, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return ()
    tensor = ("x", "x1", "x2", "a", "b", "array")
    return tuple(
        Argument(p.name, p.name in tensor, p.default, p.kind is p.KEYWORD_ONLY)
        if p.default is not p.empty
        else Argument(p.name, p.name in tensor)
        for p in parameters
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    )


@front
def discover_strategies(
    op: Callable[..., Any] | str,
    op_name: str = "",
    input_ndims: Sequence[int] | None = None,
    output_ndims: Sequence[int] | None = None,
    input_shape: Sequence[int] | Sequence[Sequence[int]] = (8, 6),
    device: object = None,
    world_size: int = 2,
    kwargs: Mapping[str, Any] | None = None,
) -> list[dict[str, list[str]]]:
    """Every valid placement for calls on tensors of this shape, as ``{"inputs": [...], "output": [...]}``.

    `input_shape` is one shape for all inputs, or a list of shapes; `input_ndims` tells how many inputs there are.
    """
    operator = operator_of(op, op_name)
    shapes = _shapes(input_shape, input_ndims, output_ndims)
    call = _call(operator, shapes, dict(kwargs or {}), device)
    if not runs(operator, call):
        raise DiscoverError(
            f"{operator.name} does not run on tensors of shapes {', '.join(map(str, shapes))}",
            help="give the shapes and keyword values of a call that works",
        )
    table = _checked(operator, call, _generators(operator, THOROUGH), _worlds(world_size))
    _expect_ranks(operator, table, output_ndims)
    return [
        {"inputs": [str(p) for p in inputs], "output": [str(sorted(found, key=str)[0]) for found in outputs]}
        for inputs, outputs in folded(table).items()
        if all(outputs)
    ]


@front
def analyze_and_synthesize(
    op: Callable[..., Any] | str,
    op_name: str = "",
    input_ndims: Sequence[int] | None = None,
    output_ndims: Sequence[int] | None = None,
    input_shape: Sequence[int] | Sequence[Sequence[int]] = (8, 6),
    device: object = None,
    world_size: int = 2,
    dim_param: str = "dim",
    dim_values: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Check the operator for each value of `dim_param`, and state the rules with their conditions.

    Without `dim_values` every dim that the operator accepts is tried; an operator without such a parameter is called
    without.  The answer's ``"formatted"`` is text to read; ``"statement"`` is the whole finding.
    """
    from .report import as_dict, as_text, as_yaml

    operator = operator_of(op, op_name)
    shapes = _shapes(input_shape, input_ndims, output_ndims)
    rank = max(map(len, shapes))
    tried: list[dict[str, Any]] = [{dim_param: value} for value in dim_values] if dim_values is not None else []
    if dim_values is None:
        takes = any(argument.name == dim_param for argument in operator.arguments)
        tried = [{dim_param: dim} for dim in (*range(rank), -1)] if takes else [{}]
    calls = [_call(operator, shapes, kwargs, device) for kwargs in tried]
    good = [call for call in calls if runs(operator, call)]
    if not good:
        raise DiscoverError(
            f"{operator.name} runs for none of {tried} on shapes {', '.join(map(str, shapes))}",
            help="give shapes and dims that it accepts",
        )
    drawn = _generators(operator, THOROUGH)
    effort = _worlds(world_size)
    # Some calls that were not asked for, of other ranks: a statement from one shape should hold on those, too.
    tables = [_checked(operator, call, drawn, effort) for call in widened(operator, good, 3)]
    _expect_ranks(operator, tables[0], output_ndims)
    statement = state(operator, tables, drawn, effort)
    facts = as_dict(statement)
    return {**facts, "formatted": as_text(statement), "yaml": as_yaml(statement), "statement": statement}


def _worlds(world_size: int) -> Effort:
    if type(world_size) is not int or world_size < 2:
        raise DiscoverError(f"world_size= takes a number of ranks, 2 or more, not {world_size!r}")
    return replace(THOROUGH, worlds=tuple(dict.fromkeys((world_size, *WORLDS))))


def _is_listed(item: object) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str | bytes)


def _all_sizes(item: Any) -> bool:
    return _is_listed(item) and all(type(size) is int and size >= 0 for size in item)


def _shapes(
    input_shape: Sequence[int] | Sequence[Sequence[int]],
    input_ndims: Sequence[int] | None,
    output_ndims: Sequence[int] | None = None,
) -> list[tuple[int, ...]]:
    if not _all_sizes(input_shape) and not (_is_listed(input_shape) and all(map(_all_sizes, input_shape))):
        raise DiscoverError(
            f"input_shape= takes a shape, or one for each input, not {input_shape!r}", help="write input_shape=(8, 6)"
        )
    for name, ranks in (("input_ndims", input_ndims), ("output_ndims", output_ndims)):
        if ranks is not None and not _all_sizes(ranks):
            raise DiscoverError(f"{name}= takes how many dims each tensor has, not {ranks!r}", help=f"write {name}=[2]")
    if any(isinstance(item, Sequence) for item in input_shape):
        shapes = [tuple(shape) for shape in input_shape if isinstance(shape, Sequence)]
    else:
        shapes = [tuple(int(size) for size in input_shape if isinstance(size, int))] * len(input_ndims or (0,))
    if input_ndims is not None:
        # A tensor of lower rank has the last dims of the shape, as in broadcasting.
        shapes = [
            shape[len(shape) - ndim :] if ndim < len(shape) else shape for shape, ndim in zip(shapes, input_ndims)
        ]
        if [len(shape) for shape in shapes] != list(input_ndims):
            raise DiscoverError(f"input_ndims={list(input_ndims)} does not fit the shapes {shapes}")
    return shapes


def _call(operator: Operator, shapes: Sequence[tuple[int, ...]], kwargs: dict[str, Any], device: object) -> Sample:
    if device is not None and getattr(device, "type", str(device)) != "cpu":
        raise DiscoverError(f"discovery runs on the CPU, not on {device}", help='device=torch.device("cpu")')
    tensors: list[Array] = [np.random.default_rng(42 + i).standard_normal(shape) for i, shape in enumerate(shapes)]
    roles = tuple("data" for _ in tensors)
    call = Sample(tuple(map(Slot, range(len(tensors)))), kwargs, tuple(tensors), roles, "as asked")  # type: ignore[arg-type]
    # The same numbers made legal: sorted where the operator wants it, positive definite, and so on.
    return redraw(operator, call, generator_named("make_randn")) or call


def _expect_ranks(operator: Operator, table: Table, output_ndims: Sequence[int] | None) -> None:
    got = [len(shape) for shape in table.outputs]
    if output_ndims is not None and not table.refused and got != list(output_ndims):
        raise DiscoverError(f"{operator.name} gives tensors of ranks {got}, not {list(output_ndims)}")
