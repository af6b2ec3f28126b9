"""From a statement to a Python file that registers it with PyTorch's DTensor.

The file is valid as it stands: beside torch it imports `dtensor_rules`, which is written to the same folder, replaces
whatever was registered for the operator, and works on torch 2.11 and newer.  What a strategy cannot say is left out,
with the reason as a comment.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..operator import REQUIRED, Argument, Operator, slots_in
from ..placement import P, R
from ..statement import Rule, ShardedOn, Statement, Term
from ..synthesis.cases import rank_code
from .source import (
    WIDTH,
    Kept,
    Layout,
    LeftOut,
    NoLiteral,
    aligned,
    arguments_read,
    as_comment,
    as_many,
    bracketed,
    code_of,
    emitted_rules,
    identifier,
    is_pending,
    layouts,
    literal,
    local_name,
    names_read,
    overload_parts,
    partial_source,
    quoted,
    shards,
)

_NEVER_SHAPES = ("float", "float?", "Generator", "Generator?", "Device", "Device?")
"""Types of arguments on which neither a result's shape nor its dtype depends."""

HELPERS = (
    *("acceptable", "aligned", "clear_cache", "fitting", "forget", "known_options", "normal_dims", "reducible"),
    *("remember", "tensor_names", "tensors_in"),
)
"""What `dtensor_rules` has for emitted files."""


@dataclass(frozen=True)
class Origin:
    """What defines an operator of one's own: modules, and the folders that hold them, as seen from the emitted file."""

    modules: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


TORCH = Origin()
"""PyTorch's own operators need nothing."""


def emit_strategy(statement: Statement, origin: Origin = TORCH, even_only: bool = False) -> str:
    """The Python file that registers the statement's rules.

    Args:
        origin: what to import first, if the operator is not PyTorch's.
        even_only: also emit rules that hold on even shards only.  DTensor applies them to uneven ones, too.
    """
    operator = statement.operator
    kept, left_out = emitted_rules(statement, even_only)
    decorator = [
        "@register_single_dim_strategy(",
        "    OP,",
        *_schema_info(statement, [k.rule for k in kept]),
        *([f"    **known_options(allow_uneven_sharding={empty_shards_too(kept)}),"] if kept else []),
        ")",
        f"def {title_of(operator)}_strategy(op, args_schema, kwargs_schema):",
    ]
    body = "\n".join([*decorator, *docstring(statement, kept, left_out), *body_of(statement, kept), ""])
    about = f"Importing this file registers them for {operator.overload}, in place of what PyTorch has."
    head = header(statement, origin, about, body + "forget( clear_cache(", ["register_single_dim_strategy"])
    return "\n\n".join([head, f"forget(OP)\n\n\n{body}", "clear_cache()\n"])


def header(statement: Statement, origin: Origin, about: str, body: str, single_dim: Sequence[str] = ()) -> str:
    """The top of an emitted file: what it is, what the code of its body needs, and the operator."""
    name = as_comment(statement.operator.name)
    placements = [n for n in ("DTensor", "Partial", "Replicate", "Shard") if re.search(rf"\b{n}\b[.(]", body)]
    if "_ShardingPlaceholder(" in body:
        single_dim = ["_ShardingPlaceholder", *single_dim]
    lines = [
        f'"""Sharding rules of {name} for DTensor, found by running it on shards.',
        "",
        about,
        '"""',
        "",
        *(["import importlib"] if origin.modules else []),
        "import sys",
        "from pathlib import Path",
        "",
        "import torch",
        *([f"from torch.distributed.tensor import {', '.join(placements)}"] if placements else []),
        *(
            ["from torch.distributed.tensor._op_schema import RuntimeSchemaInfo"]
            if "RuntimeSchemaInfo(" in body
            else []
        ),
    ]
    if single_dim:
        lines += bracketed("from torch.distributed.tensor._ops.single_dim_strategy import ", list(single_dim), "")
    if "register_sharding(" in body:
        lines.append("from torch.distributed.tensor.experimental import register_sharding")
    helpers = [name for name in HELPERS if f"{name}(" in body]
    lines += [
        "",
        "sys.path.append(str(Path(__file__).resolve().parent))  # the helpers lie beside this file",
        "",
        *bracketed("from dtensor_rules import ", helpers, ""),
        "",
        *(f"sys.path.append(str(Path(__file__).resolve().parent / {quoted(folder)}))" for folder in origin.folders),
        *(f"importlib.import_module({quoted(module)})  # it defines the operator" for module in origin.modules),
        f"OP = {operator_source(statement.operator)}",
    ]
    return "\n".join(lines)


def operator_source(operator: Operator, *parts: str) -> str:
    """The overload as an expression: ``torch.ops.aten.add.Tensor``."""
    found = "torch.ops"
    for part in parts or overload_parts(operator):
        found = f"getattr({found}, {quoted(part)})" if keyword.iskeyword(part) else f"{found}.{part}"
    return found


def title_of(operator: Operator) -> str:
    """A name for what is emitted: ``linalg_cross``, ``add_Tensor``."""
    _, name, overload = overload_parts(operator)
    return identifier(name if overload == "default" else f"{name}_{overload}")


# ---- the function --------------------------------------------------------------------------------------------------


def body_of(statement: Statement, kept: Sequence[Kept], shard: str = "_ShardingPlaceholder") -> list[str]:
    """The lines that work out the rows from `args_schema` and `kwargs_schema`, and return them."""
    rules = [k.rule for k in kept]
    if not rules:
        return ["    return []"]
    lines = [*_bindings(statement, kept), "    rows = []"]
    counted = _needs_count(statement)
    for count in dict.fromkeys(len(rule.inputs) for rule in rules):
        block = [line for k in kept if len(k.rule.inputs) == count for line in _rows(k, shard)]
        if counted:
            layout = next(k.layout for k in kept if len(k.rule.inputs) == count)
            lines.append(f"    if {_such_a_call(statement, layout)}:")
            block = [f"    {line}" if line else "" for line in block[1:]]
        lines += block
    found = "fitting(rows, tensors)" if _may_leave_dims(statement, rules) else "rows"
    if _meets_complex(statement, rules):
        found = f"reducible({found}, tensors)"
    return [*lines, f"    return {found}"]


def _meets_complex(statement: Statement, rules: Sequence[Rule]) -> bool:
    """Whether complex numbers may come to be pending otherwise than as a sum."""
    calls = (*statement.samples, *statement.fresh_calls)
    other = any(is_pending(t) and t not in (P("sum"), P("avg")) for r in rules for t in (*r.inputs, *r.outputs))
    return other and any(tensor.dtype.kind == "c" for call in calls for tensor in call.tensors)


def _such_a_call(statement: Statement, layout: Layout) -> str:
    """The test that a call has the tensors that rules are for: which, if some may be missing; else how many."""
    if not any(a.tensor and a.type.endswith("?") for a in statement.operator.arguments):
        return f"len(tensors) == {layout.tensors}"
    names = tuple(layout.names[i] for i in layout.order)
    return f"tensor_names(op, args_schema, kwargs_schema) == {literal(list(names))}"


def _may_leave_dims(statement: Statement, rules: Sequence[Rule]) -> bool:
    """Whether some dim that a rule speaks of may not exist: a shifted one, or one of a tensor of smaller rank."""
    for rule in rules:
        for i, term in enumerate((*rule.inputs, *rule.outputs)):
            if isinstance(term, ShardedOn) and (term.dim.code != "d" or term.broadcasts):
                return True
            if isinstance(term, ShardedOn) and i < len(rule.inputs) and i != rule.reference:
                for sample in statement.samples:
                    rank = [len(shape) for shape in sample.shapes]
                    if len(rank) == len(rule.inputs) and rank[i] < rank[rule.reference or 0]:
                        return True
    return False


def empty_shards_too(kept: Sequence[Kept]) -> bool:
    """DTensor shards unevenly anyway; this option is about dims smaller than the mesh, that is empty shards."""
    return all(k.rule.grade == "empty" for k in kept if shards(k.rule))


def _needs_count(statement: Statement) -> bool:
    """Whether calls differ in how many tensors they have: then each rule is for one number of them."""
    operator = statement.operator
    if len(layouts(statement)) > 1 or _has_tensor_list(statement):
        return True
    return any(a.tensor and (a.type.endswith("?") or a.default is None) for a in operator.arguments)


def _has_tensor_list(statement: Statement) -> bool:
    if any(a.tensor and "[" in a.type for a in statement.operator.arguments):
        return True
    for sample in statement.samples:
        values = [*sample.args, *sample.kwargs.values()]
        if any(isinstance(value, (list, tuple)) and any(True for _ in slots_in(value)) for value in values):
            return True
    return False


def _schema_info(statement: Statement, rules: Sequence[Rule]) -> list[str]:
    parts = schema_parts(statement, rules)
    return bracketed("schema_info=RuntimeSchemaInfo(", parts, "),", indent=4) if parts else []


def schema_parts(statement: Statement, rules: Sequence[Rule], pytree: bool = False) -> list[str]:
    """What belongs to the key of DTensor's cache.

    What the rules read must be there; and since a cached entry also holds the result's shape and dtype, so must
    every argument that these may depend on.
    """
    operator = statement.operator
    matters = _matters(statement, rules)
    places = [_position(operator, a) for a in matters if not a.keyword_only]
    keywords = [a.name for a in matters if a.keyword_only]
    parts = []
    if places:
        parts.append(f"static_argnum={min(places)}")
    if keywords:
        parts.append(f"static_kwargkey={literal(keywords)}")
    if pytree or _has_tensor_list(statement):
        parts.append("needs_pytree=True")
    return parts


def _matters(statement: Statement, rules: Sequence[Rule]) -> list[Argument]:
    """Arguments on which the rules, or a result's shape or dtype, depend."""
    arguments = statement.operator.arguments
    read = {a.name for a in arguments_read(statement.operator, rules)}
    return [a for a in arguments if not a.tensor and (a.name in read or a.type not in _NEVER_SHAPES)]


def needs_key(statement: Statement, rules: Sequence[Rule]) -> bool:
    """Whether more belongs to the key than `register_sharding` puts there: the first whole number and what follows."""
    operator = statement.operator
    whole = [a for a in operator.arguments if a.type in ("int", "int?")]
    first = min((_position(operator, a) for a in whole if not a.keyword_only), default=100)
    return any(a not in whole if a.keyword_only else _position(operator, a) < first for a in _matters(statement, rules))


def _position(operator: Operator, argument: Argument) -> int:
    return [a.name for a in operator.arguments if not a.keyword_only].index(argument.name)


def docstring(statement: Statement, kept: Sequence[Kept], left_out: Sequence[LeftOut]) -> list[str]:
    """What a strategy says of itself: its rules, why they hold, and what was left out."""
    operator = statement.operator
    lines = [f'    """How {as_comment(operator.name)} runs without communication, on one mesh dim.', ""]
    if not kept:
        lines += ["    Replicated only: no other rule was found.", '    """']
        return lines
    lines.append("    Rows hold the outputs, then the inputs.  All replicated goes without saying.")
    for k in kept:
        lines += _item(str(k.rule))
        if k.rule.justification:
            lines += _wrapped(k.rule.justification, "      ")
    if left_out:
        lines += ["", "    Left out:"]
        for out in left_out:
            lines += [*_item(str(out.rule)), *_wrapped(out.reason, "      ")]
    return [*lines, '    """']


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        as_comment(text), WIDTH - 10, initial_indent="    - ", subsequent_indent="      ", break_long_words=False
    )


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        as_comment(text), WIDTH - 10, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


def _bindings(statement: Statement, kept: Sequence[Kept]) -> list[str]:
    """Lines that give the names that conditions and dims read."""
    operator = statement.operator
    rules = [k.rule for k in kept]
    read = names_read(rules)
    arguments = arguments_read(operator, rules)
    loops = any(rule.reference is not None for rule in rules)
    ranks = loops or "rank" in read or any(a.name in statement.dim_parameters for a in arguments)
    fitting = _may_leave_dims(statement, rules)
    lines = []
    if (
        ranks
        or fitting
        or {"shape", "dtypes"} & read
        or any(aligned(rule) for rule in rules)
        or _needs_count(statement)
        or _meets_complex(statement, rules)
    ):
        lines.append("    tensors = tensors_in([*args_schema, *kwargs_schema.values()])")
    # Expressions count tensors as the samples do; that is the schema's order unless someone mixed it.
    counted = "tensors"
    for layout in {k.layout.order: k.layout for k in kept}.values() if lines else ():
        numbers = [layout.order.index(i) for i in range(layout.tensors)]
        if numbers != list(range(layout.tensors)):
            reordered = f"[tensors[i] for i in {tuple(numbers)}]"
            lines.append(f"    ordered = {reordered} if len(tensors) == {layout.tensors} else {counted}")
            counted = "ordered"
    if ranks:
        lines.append(f"    rank = [len(tensor.shape) for tensor in {counted}]")
    if "dtypes" in read:
        lines.append(f'    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in {counted}]')
    if "shape" in read or any(aligned(rule) for rule in rules):
        lines.append(f"    shape = [tuple(tensor.shape) for tensor in {counted}]")
    room = "max(rank)" + (f" + {statement.inserts}" if statement.inserts else "")
    for argument in arguments:
        value = _value_source(operator, argument)
        if argument.name in statement.dim_parameters:
            value = f"normal_dims({value}, {room}, many={as_many(argument.name, rules)})"
        lines.append(f"    {local_name(argument.name)} = {value}")
    return lines


def _value_source(operator: Operator, argument: Argument) -> str:
    """Where a strategy finds an argument: arguments equal to their defaults are not passed on."""
    default = "None"
    if argument.default is not REQUIRED:
        try:
            default = literal(argument.default)
        except NoLiteral:
            default = "None"
    if argument.keyword_only:
        return f"kwargs_schema.get({quoted(argument.name)}, {default})"
    place = _position(operator, argument)
    if argument.default is REQUIRED:
        return f"args_schema[{place}]"
    return f"args_schema[{place}] if len(args_schema) > {place} else {default}"


def _rows(kept: Kept, shard: str) -> list[str]:
    """The lines that add a rule's rows."""
    rule, layout = kept.rule, kept.layout
    comment = as_comment(str(rule))
    lines = ["", *_comment_lines(comment)]
    terms = [*layout.result_terms(rule), *(rule.inputs[i] for i in layout.order)]
    depth = 4
    if rule.reference is not None:
        lines.append(f"    for d in range({rank_code(rule.reference)}):")
        depth += 4
    if rule.conditions:
        lines += _condition(rule, depth)
        depth += 4
    numbers = [None] * len(layout.result_terms(rule)) + list(layout.order)
    items = [_term_source(term, number, shard) for term, number in zip(terms, numbers)]
    one = bracketed("rows.append([", items, "])", depth)
    if len(one) == 1:
        return lines + one
    pad = " " * depth
    return [*lines, f"{pad}rows.append(", *bracketed("[", items, "]", depth + 4), f"{pad})"]


def _comment_lines(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 8, initial_indent="    # ", subsequent_indent="    # ", break_long_words=False)


def _condition(rule: Rule, depth: int) -> list[str]:
    pad = " " * depth
    codes = [code_of(condition) for condition in rule.conditions]
    tests = codes if len(codes) == 1 else [_joined(code) for code in codes]
    one = f"{pad}if {' and '.join(tests)}:"
    if len(one) <= WIDTH:
        return [one]
    rest = [f"{pad}    {'and ' if i else ''}{test}" for i, test in enumerate(tests)]
    return [f"{pad}if (", *rest, f"{pad}):"]


def _joined(code: str) -> str:
    """A test that may stand beside `and`."""
    return f"({code})" if any(word in code for word in (" or ", " if ", "lambda", ":=")) else code


def _term_source(term: Term, number: int | None, shard: str) -> str:
    """A term of a row; `number` is the input's, None for outputs."""
    if isinstance(term, ShardedOn) and term.broadcasts and number is not None:
        other = "" if shard == "_ShardingPlaceholder" else f", {shard}"
        return f"aligned({code_of(term.dim)}, shape[{number}]{other})"
    if isinstance(term, ShardedOn):
        return f"{shard}({code_of(term.dim)})"
    if term.kind == "S":
        return f"{shard}({term.dim})"
    return "Replicate()" if term is R else partial_source(term.reduce)
