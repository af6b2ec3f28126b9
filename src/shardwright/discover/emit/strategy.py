"""From a statement to a Python file that registers it with PyTorch's DTensor.

The file is valid as it stands: it imports only torch, replaces whatever was registered for the operator, and works
on torch 2.11 and newer.  What a strategy cannot say is left out, with the reason as a comment.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence

from ..cases import rank_code
from ..operator import REQUIRED, Argument, Operator, slots_in
from ..placement import R
from ..statement import Rule, ShardedOn, Statement, Term
from .source import (
    WIDTH,
    Kept,
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
    layouts,
    literal,
    local_name,
    names_read,
    normal_dims,
    overload_parts,
    partial_source,
    shards,
)

_NEVER_SHAPES = ("float", "float?", "Generator", "Generator?", "Device", "Device?")
"""Types of arguments on which neither a result's shape nor its dtype depends."""

_OPTIONS = '''\
def _options(**wanted):
    """Those options that this version of PyTorch has: torch 2.11 does not know `allow_uneven_sharding`."""
    known = inspect.signature(register_single_dim_strategy).parameters
    return {name: value for name, value in wanted.items() if name in known}
'''

_FORGET = '''\
def _forget(op):
    """Drop what PyTorch has for the operator: another kind of strategy, or its cache key, would be taken first."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    for table in (
        "op_to_rules",
        "op_strategy_funcs",
        "op_single_dim_strategy_funcs",
        "op_to_schema_info",
        "op_to_schema_info_for_single_dim_strategy",
    ):
        getattr(propagator, table, {}).pop(op, None)
'''

_TENSORS = '''\
def _tensors(values):
    """The tensors among the arguments, in order; lists are looked through, None is none."""
    found = []
    for value in values:
        if isinstance(value, TensorMeta):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_tensors(value))
    return found
'''

_ALIGNED = '''\
def _aligned(dim, shape):
    """Sharded on a dim that broadcasting aligned from the right; replicated where the tensor is broadcast along it."""
    return Replicate() if dim < 0 or shape[dim] == 1 else _ShardingPlaceholder(dim)
'''

_FITTING = '''\
def _fitting(rows, tensors):
    """The rows whose dims exist: where an expression leaves a tensor's dims, its rule says nothing."""
    found = []
    for row in rows:
        if all(isinstance(p, Replicate) for p in row[len(row) - len(tensors) :]):
            continue  # every input is broadcast along this dim: there is nothing to shard
        # The outputs stand first; their ranks are not known here.
        ranks = [*[None] * (len(row) - len(tensors)), *(len(tensor.shape) for tensor in tensors)]
        shards = [(p.dim, rank) for p, rank in zip(row, ranks, strict=True) if isinstance(p, _ShardingPlaceholder)]
        if all(dim >= 0 and (rank is None or dim < rank) for dim, rank in shards):
            found.append(row)
    return found
'''

_CLEAR = '''\
def _clear_cache():
    """Forget placements that were worked out before these rules were known."""
    clear = getattr(torch.distributed.tensor.debug, "_clear_sharding_prop_cache", None)
    if clear is not None:
        clear()
'''


def emit_strategy(statement: Statement, imports: Sequence[str] = (), even_only: bool = False) -> str:
    """The Python file that registers the statement's rules.

    Args:
        imports: modules to import first, such as the one that defines a custom operator.
        even_only: also emit rules that hold on even shards only.  DTensor applies them to uneven ones, too.
    """
    operator = statement.operator
    overload_parts(operator)
    kept, left_out = emitted_rules(statement, even_only)
    body = "\n".join(_function(statement, kept, left_out))
    helpers = [_OPTIONS, _FORGET]
    if "_tensors(" in body:
        helpers.append(_TENSORS)
    if "_normal_dims(" in body:
        helpers.append(_normal_dims_source())
    if "_aligned(" in body:
        helpers.append(_ALIGNED)
    if "_fitting(" in body:
        helpers.append(_FITTING)
    helpers.append(_CLEAR)
    blocks = ["\n".join(_header(statement, imports, body)), *helpers, f"_forget(OP)\n\n\n{body}", "_clear_cache()\n"]
    return "\n\n".join(block.rstrip("\n") + "\n" for block in blocks)


def _header(statement: Statement, imports: Sequence[str], body: str) -> list[str]:
    operator = statement.operator
    # The helpers for aligned dims and for rows that fit name both kinds of placement.
    helped = "_aligned(" in body or "_fitting(" in body
    names = [name for name in ("Partial", "Replicate") if f"{name}(" in body or (helped and name == "Replicate")]
    placeholders = helped or "_ShardingPlaceholder(" in body
    lines = [
        f'"""Sharding rules of {operator.name} for DTensor, found by running it on shards.',
        "",
        f"Importing this file registers them for {operator.overload}, in place of what PyTorch has.",
        '"""',
        "",
        "import inspect",
        "",
        "import torch",
        "import torch.distributed.tensor.debug",
        f"from torch.distributed.tensor import {', '.join(['DTensor', *names])}",
    ]
    if "TensorMeta" in body or "_tensors(" in body:
        lines.append("from torch.distributed.tensor._dtensor_spec import TensorMeta")
    if "RuntimeSchemaInfo(" in body:
        lines.append("from torch.distributed.tensor._op_schema import RuntimeSchemaInfo")
    lines += [
        *bracketed(
            "from torch.distributed.tensor._ops.single_dim_strategy import ",
            [*(["_ShardingPlaceholder"] if placeholders else []), "register_single_dim_strategy"],
            "",
        ),
        *([""] if imports else []),
        *(f"import {module}  # noqa: F401 - it defines the operator" for module in sorted(imports)),
        "",
        f"OP = torch.ops.{'.'.join(overload_parts(operator))}",
    ]
    return lines


def _normal_dims_source() -> str:
    """Our own reading of dims, so that emitted code and discovery cannot differ."""
    lines = inspect.getsource(normal_dims).splitlines()
    end = next(i for i, line in enumerate(lines) if i > 1 and line.strip() == '"""')
    about = lines[1].strip().strip('"')
    return "\n".join(["def _normal_dims(value, rank, many):", f'    """{about}"""', *lines[end + 1 :]]) + "\n"


# ---- the function --------------------------------------------------------------------------------------------------


def _function(statement: Statement, kept: Sequence[Kept], left_out: Sequence[LeftOut]) -> list[str]:
    operator = statement.operator
    _, name, overload = overload_parts(operator)
    title = identifier(name if overload == "default" else f"{name}_{overload}")
    lines = [
        "@register_single_dim_strategy(",
        "    OP,",
        *_schema_info(statement, [k.rule for k in kept]),
        *([f"    **_options(allow_uneven_sharding={_empty_shards_too(kept)}),"] if kept else []),
        ")",
        f"def {title}_strategy(op, args_schema, kwargs_schema):",
        *_docstring(statement, kept, left_out),
    ]
    rules = [k.rule for k in kept]
    if not rules:
        return [*lines, "    return []"]
    lines += [*_bindings(statement, kept), "    rows = []"]
    counted = _needs_count(statement)
    for count in dict.fromkeys(len(rule.inputs) for rule in rules):
        block = [line for k in kept if len(k.rule.inputs) == count for line in _rows(k)]
        if counted:
            lines.append(f"    if len(tensors) == {count}:")
            block = [f"    {line}" if line else "" for line in block[1:]]
        lines += block
    return [*lines, "    return _fitting(rows, tensors)" if _may_leave_dims(statement, rules) else "    return rows"]


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


def _empty_shards_too(kept: Sequence[Kept]) -> bool:
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
    """What belongs to the key of DTensor's cache.

    What the rules read must be there; and since a cached entry also holds the result's shape and dtype, so must
    every argument that these may depend on.
    """
    operator = statement.operator
    read = {a.name for a in arguments_read(operator, rules)}
    matters = [a for a in operator.arguments if not a.tensor and (a.name in read or a.type not in _NEVER_SHAPES)]
    places = [_position(operator, a) for a in matters if not a.keyword_only]
    keywords = [a.name for a in matters if a.keyword_only]
    parts = []
    if places:
        parts.append(f"static_argnum={min(places)}")
    if keywords:
        parts.append(f"static_kwargkey={literal(keywords).replace(chr(39), chr(34))}")
    if _has_tensor_list(statement):
        parts.append("needs_pytree=True")
    if not parts:
        return []
    return bracketed("schema_info=RuntimeSchemaInfo(", parts, "),", indent=4)


def _position(operator: Operator, argument: Argument) -> int:
    return [a.name for a in operator.arguments if not a.keyword_only].index(argument.name)


def _docstring(statement: Statement, kept: Sequence[Kept], left_out: Sequence[LeftOut]) -> list[str]:
    operator = statement.operator
    lines = [f'    """How {operator.name} runs without communication, on one mesh dim.', ""]
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
    ):
        lines.append("    tensors = _tensors([*args_schema, *kwargs_schema.values()])")
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
            value = f"_normal_dims({value}, {room}, many={as_many(argument.name, rules)})"
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
        return f'kwargs_schema.get("{argument.name}", {default})'
    place = _position(operator, argument)
    if argument.default is REQUIRED:
        return f"args_schema[{place}]"
    return f"args_schema[{place}] if len(args_schema) > {place} else {default}"


def _rows(kept: Kept) -> list[str]:
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
    items = [_term_source(term, number) for term, number in zip(terms, numbers)]
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


def _term_source(term: Term, number: int | None) -> str:
    """A term of a row; `number` is the input's, None for outputs."""
    if isinstance(term, ShardedOn) and term.broadcasts and number is not None:
        return f"_aligned({code_of(term.dim)}, shape[{number}])"
    if isinstance(term, ShardedOn):
        return f"_ShardingPlaceholder({code_of(term.dim)})"
    if term.kind == "S":
        return f"_ShardingPlaceholder({term.dim})"
    return "Replicate()" if term is R else partial_source(term.reduce)
