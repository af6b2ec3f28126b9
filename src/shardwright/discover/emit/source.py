"""What both emitted files need: how a call lies in its arguments, and values written as Python.

Nothing here imports a framework: the overload's schema is read from the operator itself, or looked up once.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import keyword
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DiscoverError
from ..operator import Argument, Operator, Sample, Slot, slots_in
from ..placement import P, Placement, R
from ..statement import Expr, Rule, ShardedOn, Statement, Term
from ..synthesis.conditions import RESERVED
from .expression import value_of

WIDTH = 120
"""Columns of an emitted line at most."""


# ---- the call ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How the tensors of a call lie in the operator's arguments, and how its results are made of a rule's outputs."""

    names: tuple[str, ...]
    """The argument that each tensor is, by the tensor's number: ``input``, ``tensors[1]``."""
    order: tuple[int, ...]
    """The tensors' numbers in the order of the schema, which is DTensor's."""
    mutated: tuple[int, ...]
    """Tensors that the call writes to."""
    returns: tuple[tuple[str, int], ...]
    """Per returned tensor: ``("input", i)``, the tensor i written to, or ``("output", i)``, output i of the rule."""

    @property
    def tensors(self) -> int:
        return len(self.names)

    def result_terms(self, rule: Rule) -> tuple[Term, ...]:
        """How each returned tensor lies under a rule."""
        return tuple(rule.inputs[i] if source == "input" else rule.outputs[i] for source, i in self.returns)


def overload_parts(operator: Operator) -> tuple[str, str, str]:
    """Namespace, name and overload of the operator."""
    parts = operator.overload.split(".")
    if len(parts) not in (2, 3) or not all(part.isidentifier() for part in parts):
        raise DiscoverError(
            f"{operator.name} is no operator overload that a strategy could be registered for",
            rows=[("overload", operator.overload or "none")],
            help="discover the overload itself: aten.linalg_cross.default",
        )
    return parts[0], parts[1], parts[2] if len(parts) == 3 else "default"


def schema_of(operator: Operator) -> Any:
    """PyTorch's schema of the overload, or None where PyTorch does not know it."""
    found = getattr(operator.call, "_schema", None)
    if found is not None:
        return found
    namespace, name, overload = overload_parts(operator)
    try:
        torch: Any = importlib.import_module("torch")
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    except (ImportError, AttributeError):
        return None


def layouts(statement: Statement) -> dict[int, Layout]:
    """The layout of calls with n tensors, by n: optional tensors and lists of tensors make several."""
    found: dict[int, Layout] = {}
    for sample in (*statement.samples, *statement.fresh_calls):
        if len(sample.tensors) not in found and spoken_of(statement, sample):
            found[len(sample.tensors)] = _layout(statement, sample)
    for rule in statement.every_rule:
        if len(rule.inputs) not in found:
            found[len(rule.inputs)] = _layout_without_sample(statement, rule)
    return found


def spoken_of(statement: Statement, sample: Sample) -> bool:
    """Whether the rules are of calls with these tensors: ``clamp(x, None, y)`` has as many as ``clamp(x, y)``."""
    return not statement.tensors or sample.tensor_names(statement.operator) in statement.tensors


def _layout(statement: Statement, sample: Sample) -> Layout:
    operator = statement.operator
    bound = sample.bound(operator)
    positional = [a.name for a in operator.arguments if not a.keyword_only]
    keyword_only = [a.name for a in operator.arguments if a.keyword_only]
    rest = [name for name in bound if name not in {*positional, *keyword_only}]
    order = [slot.index for name in (*positional, *rest, *keyword_only) for slot in slots_in(bound.get(name))]
    mutated = tuple(slot.index for name in operator.mutates if isinstance(slot := bound.get(name), Slot))
    names = sample.tensor_names(operator)
    outputs = next((len(rule.outputs) for rule in statement.every_rule if len(rule.inputs) == len(names)), None)
    return Layout(names, tuple(order), mutated, _returns(operator, bound, mutated, outputs))


def _layout_without_sample(statement: Statement, rule: Rule) -> Layout:
    """For a statement that kept no sample of this call: the tensor arguments in order, as many as there are."""
    operator = statement.operator
    arguments = [a for a in operator.arguments if a.tensor]
    arguments.sort(key=lambda a: a.keyword_only)
    names = tuple(a.name for a in arguments)[: len(rule.inputs)]
    if len(names) < len(rule.inputs):
        names = tuple(f"tensor{i}" for i in range(len(rule.inputs)))
    slots = {name: Slot(i) for i, name in enumerate(names)}
    mutated = tuple(slots[name].index for name in operator.mutates if name in slots)
    return Layout(names, tuple(range(len(names))), mutated, _returns(operator, slots, mutated, len(rule.outputs)))


def _returns(
    operator: Operator, bound: dict[str, Any], mutated: tuple[int, ...], outputs: int | None
) -> tuple[tuple[str, int], ...]:
    schema = schema_of(operator)
    if schema is None:
        fresh = (outputs or 1) - len(mutated)
        return (*(("input", i) for i in mutated), *(("output", len(mutated) + i) for i in range(fresh)))
    tensors = [r for r in schema.returns if "Tensor" in str(r.type)]
    if any("List" in str(r.type) for r in tensors):
        raise DiscoverError(
            f"{operator.overload} returns a list of tensors, for which DTensor has no single-dim strategies",
            help="use the rule book's line instead",
        )
    # A rule's outputs are the written tensors, then what is returned besides: read that from the end.
    fresh = sum(_written(r, schema) is None for r in tensors)
    first = (outputs or len(mutated) + fresh) - fresh
    found: list[tuple[str, int]] = []
    for result in tensors:
        name = _written(result, schema)
        slot = bound.get(name) if name is not None else None
        if isinstance(slot, Slot):
            found.append(("input", slot.index))
        else:
            found.append(("output", first))
            first += 1
    return tuple(found)


def _written(result: Any, schema: Any) -> str | None:
    """The argument that a returned tensor is, if the operator writes to it and returns it."""
    alias = result.alias_info
    if alias is None or not alias.is_write:
        return None
    for argument in schema.arguments:
        other = argument.alias_info
        if other is not None and other.is_write and other.before_set & alias.before_set:
            return str(argument.name)
    return None


# ---- which rules DTensor can be told ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A rule that is emitted."""

    rule: Rule
    layout: Layout


@dataclass(frozen=True)
class LeftOut:
    """A rule that is not, and why."""

    rule: Rule
    reason: str


def emitted_rules(statement: Statement, even_only: bool = False) -> tuple[tuple[Kept, ...], tuple[LeftOut, ...]]:
    """The rules that DTensor can be told, and those that it cannot.  All-replicated is in neither."""
    by_count = layouts(statement)
    kept: list[Kept] = []
    left_out: list[LeftOut] = []
    seen: set[object] = set()
    bool_outputs = {count: _bool_outputs(statement, count) for count in by_count}
    for rule in statement.every_rule:
        if rule.all_replicated:
            continue
        layout = by_count[len(rule.inputs)]
        key = (rule.inputs, rule.reference, frozenset(c.code for c in rule.conditions))
        reason = _why_not(rule, layout, bool_outputs[len(rule.inputs)], even_only)
        if not reason and key in seen:
            reason = "the inputs of an earlier rule: DTensor takes the first"
        if reason:
            left_out.append(LeftOut(rule, reason))
        else:
            seen.add(key)
            kept.append(Kept(rule, layout))
    return tuple(kept), tuple(left_out)


def _why_not(rule: Rule, layout: Layout, bools: tuple[frozenset[int], frozenset[int]], even_only: bool) -> str:
    if all(term is R for term in rule.inputs):
        return "with all inputs replicated DTensor replicates the outputs"
    for i, slot in enumerate(layout.mutated):
        if rule.outputs[i] != rule.inputs[slot]:
            return f"it would change how {layout.names[slot]}, which is written to, lies"
    if any(is_pending(rule.inputs[i]) for i in bools[0]) or any(is_pending(rule.outputs[i]) for i in bools[1]):
        return "a truth value cannot be pending"
    if rule.grade == "even" and shards(rule) and not even_only:
        return "it holds on even shards only, and a strategy is not told the mesh, so it cannot refuse others"
    if rule.grade == "even" and rule.narrows:
        return "where its inputs are cut evenly its results may not be, and a strategy is asked about inputs alone"
    if rule.grade != "empty" and rule.silent and shards(rule) and not even_only:
        return "on empty shards it gives wrong numbers, and a strategy is not told the mesh, so it cannot refuse them"
    return ""


def _bool_outputs(statement: Statement, count: int) -> tuple[frozenset[int], frozenset[int]]:
    """Inputs and outputs that are truth values in every sample of this many tensors."""
    inputs: frozenset[int] | None = None
    outputs: frozenset[int] | None = None
    for sample in [s for s in statement.samples if len(s.tensors) == count and spoken_of(statement, s)][:4]:
        ins = frozenset(i for i, tensor in enumerate(sample.tensors) if tensor.dtype == bool)
        outs = frozenset(i for i, array in enumerate(results(statement.operator, sample)) if array.dtype == bool)
        inputs = ins if inputs is None else inputs & ins
        outputs = outs if outputs is None else outputs & outs
    return inputs or frozenset(), outputs or frozenset()


def results(operator: Operator, sample: Sample) -> list[Any]:
    """The outputs of a sample as rules count them: the written tensors, then what is returned besides."""
    library = operator.library
    tensors = [library.copy(library.tensor(array)) for array in sample.tensors]
    args, kwargs = sample.fill(tensors)
    try:
        returned = operator.call(*args, **kwargs)
    except Exception:
        return []
    bound = sample.bound(operator)
    written = [tensors[slot.index] for name in operator.mutates if isinstance(slot := bound.get(name), Slot)]
    items = returned if isinstance(returned, (list, tuple)) else [returned]
    fresh = [item for item in items if library.is_tensor(item) and not any(item is other for other in written)]
    return [library.array(item) for item in (*written, *fresh)]


def is_pending(term: Term) -> bool:
    return isinstance(term, Placement) and term.kind == "P"


def aligned(rule: Rule) -> bool:
    """Whether some input is aligned from the right, and replicated where it is broadcast."""
    return any(isinstance(term, ShardedOn) and term.broadcasts for term in rule.inputs)


def shards(rule: Rule) -> bool:
    """Whether some tensor is sharded."""
    return any(isinstance(t, ShardedOn) or t.kind == "S" for t in (*rule.inputs, *rule.outputs))


# ---- arguments that rules read -----------------------------------------------------------------------------------


def expressions(rule: Rule) -> Iterator[Expr]:
    """Everything that a rule evaluates."""
    yield from rule.conditions
    for term in (*rule.inputs, *rule.outputs):
        if isinstance(term, ShardedOn):
            yield term.dim


def names_read(rules: Iterable[Rule]) -> set[str]:
    """Every name that these rules' code reads; `max` and the like only if an argument is meant."""
    found: set[str] = set()
    for rule in rules:
        for expr in expressions(rule):
            names = {node.id for node in ast.walk(ast.parse(expr.code, mode="eval")) if isinstance(node, ast.Name)}
            found |= expr.uses | {name for name in names if not hasattr(builtins, name)}
    return found


def arguments_read(operator: Operator, rules: Iterable[Rule]) -> tuple[Argument, ...]:
    """The arguments without tensors that these rules read, in the operator's order."""
    names = names_read(rules) - {*RESERVED}
    return tuple(a for a in operator.arguments if a.name in names and not a.tensor)


TAKEN = frozenset(
    (
        *("args_schema", "kwargs_schema", "op", "OP", "ordered", "rows", "tensors", "found"),
        *("Partial", "Replicate", "Shard", "RuntimeSchemaInfo", "DTensor", "Path", "sys", "torch", "importlib"),
    )
)
"""Names that emitted functions use themselves."""


def local_name(name: str) -> str:
    """What an argument is called in code: ``max`` is ``max_``, since code may call `max`, too."""
    return f"{name}_" if hasattr(builtins, name) or keyword.iskeyword(name) or name in TAKEN else name


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(local_name(node.id)) if node.id in self.names else node


def code_of(expr: Expr) -> str:
    """An expression's Python, its arguments by their local names."""
    if all(local_name(name) == name for name in expr.uses):
        return expr.code
    return ast.unparse(_Renamed(expr.uses).visit(ast.parse(expr.code, mode="eval")))


def as_many(name: str, rules: Iterable[Rule]) -> bool:
    """Whether rules take an argument for several dims, even where it is given one."""
    pattern = re.compile(rf"\bin {re.escape(name)}\b|\b{re.escape(name)}\.index|\blen\({re.escape(name)}\)")
    return any(pattern.search(expr.code) for rule in rules for expr in expressions(rule) if name in expr.uses)


def normal_dims(value: Any, rank: int, many: bool) -> Any:
    """A dim counted from the left, or None; dims (or `many`) as a tuple, all of them if none are named.

    >>> normal_dims(-1, 3, False), normal_dims(-1, 3, True), normal_dims([0, -1], 3, True), normal_dims(None, 2, True)
    (2, (2,), (0, 2), (0, 1))
    """
    if isinstance(value, int):
        dim = value % max(rank, 1)
        return (dim,) if many else dim
    if value is None and not many:
        return None
    return tuple(dim % max(rank, 1) for dim in value) if value else tuple(range(rank))


def environment(statement: Statement, sample: Sample) -> dict[str, Any]:
    """The names that expressions read, as they are in a sample."""
    rank = [len(shape) for shape in sample.shapes]
    values = sample.values(statement.operator)
    room = max(rank, default=0) + statement.inserts
    for name in statement.dim_parameters:
        if name in values:
            values[name] = normal_dims(values[name], room, as_many(name, statement.every_rule))
    found = {local_name(name): value for name, value in values.items()}
    dtypes = [tensor.dtype.name for tensor in sample.tensors]
    return {**found, "rank": rank, "shape": list(sample.shapes), "dtypes": dtypes}


def evaluate(expr: Expr, names: dict[str, Any]) -> Any:
    """An expression's value."""
    return value_of(code_of(expr), names)


# ---- values as Python ----------------------------------------------------------------------------------------------


class NoLiteral(ValueError):
    """A value that has no Python text."""


def literal(value: Any, names: Sequence[str] = ()) -> str:
    """A value as an expression; a `Slot` as the name of its tensor.

    >>> literal([1, (True,), None, float("inf")])
    '[1, (True,), None, float("inf")]'
    """
    if isinstance(value, Slot):
        return names[value.index]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, (bool, int, float, str, complex)):
        return quoted(value) if isinstance(value, str) else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(literal(item, names) for item in value)}]"
    if isinstance(value, tuple):
        inside = ", ".join(literal(item, names) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    text = str(value)
    if type(value).__module__ == "torch" and re.fullmatch(r"torch\.\w+", text):
        return text  # a dtype, a layout, a memory format
    if type(value).__module__ == "torch" and type(value).__name__ == "device":
        return f"torch.device({quoted(text)})"
    raise NoLiteral(f"{value!r} cannot be written as Python")


def quoted(text: str) -> str:
    """A string in double quotes, as formatters like it."""
    inside = repr(text)
    return inside if '"' in text or "\\" in inside else f'"{inside[1:-1]}"'


def identifier(name: str) -> str:
    """A name that a local variable can have: ``tensors[1]`` is ``tensors_1``, ``self`` is ``self_``."""
    found = re.sub(r"\W+", "_", name).strip("_") or "x"
    return f"{found}_" if keyword.iskeyword(found) or found in ("self", "OP", "torch") else found


def placement_source(term: Placement) -> str:
    """``Shard(0)``, ``Partial("sum")``, ``Replicate()``; DTensor calls a pending product ``product``."""
    if term.kind == "S":
        return f"Shard({term.dim})"
    return "Replicate()" if term is R else partial_source(term.reduce)


def partial_source(reduce: str) -> str:
    assert P(reduce)
    return f'Partial("{"product" if reduce == "prod" else reduce}")'


def as_comment(text: str) -> str:
    """Text that is safe in a docstring or comment: one line, without what would end it.

    >>> as_comment('a "name" with "quotes"'), as_comment("nul \\0")
    ('a "name" with "quotes\\'', 'nul ?')
    """
    plain = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    plain = plain.replace("\\", "/").replace('"""', "'''")
    return f"{plain[:-1]}'" if plain.endswith('"') else plain


def bracketed(before: str, items: Sequence[str], after: str, indent: int = 0) -> list[str]:
    """``before`` items ``after`` on one line if it fits, else one item a line, as ruff formats it."""
    pad = " " * indent
    one = f"{pad}{before}{', '.join(items)}{after}"
    if len(one) <= WIDTH:
        return [one]
    return [f"{pad}{before}", *(f"{pad}    {item}," for item in items), f"{pad}{after}"]
