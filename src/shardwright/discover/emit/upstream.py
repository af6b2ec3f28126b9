"""From statements to a contribution to PyTorch: the decorated functions, typed, a test, and the words for it.

Three files an operator: ``NAME_upstream.py`` is what goes into ``torch/distributed/tensor/_ops``, and can be imported
as it stands; ``test_NAME_upstream.py`` holds the method for ``test/distributed/tensor``; ``NAME_pull_request.md`` the
text.  A function is registered for all overloads of its family that take the same arguments: the plain form, the one
in place, and the one that writes to ``out``.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence

from ...errors import DiscoverError
from ..operator import Operator
from ..report import signature
from ..statement import Statement
from . import dtensor_checks, dtensor_rules
from .source import (
    Kept,
    LeftOut,
    as_comment,
    bracketed,
    emitted_rules,
    literal,
    normal_dims,
    overload_parts,
    placement_source,
    schema_of,
)
from .strategy import body_of, docstring, empty_shards_too, operator_source, schema_parts, title_of
from .tests import Case, cases_of, sample_source

_TYPED = "op: OpOverload, args_schema: ArgsType, kwargs_schema: KwargsType"
_ROWS = "list[list[Placement | _ShardingPlaceholder]]"


def emit_upstream(statements: Sequence[Statement]) -> dict[str, str]:
    """The three files of each operator, by file name; statements of one operator's overloads go together."""
    groups: dict[str, list[Statement]] = {}
    for statement in statements:
        if not statement.operator.overload.startswith("aten."):
            raise DiscoverError(
                f"{statement.operator.name} is not one of PyTorch's operators, so there is nothing to contribute",
                help="emit it without --style upstream",
            )
        groups.setdefault(overload_parts(statement.operator)[1], []).append(statement)
    found: dict[str, str] = {}
    for name, group in groups.items():
        found[f"{name}_upstream.py"] = _strategies(name, group)
        found[f"test_{name}_upstream.py"] = _tests(name, group)
        found[f"{name}_pull_request.md"] = _words(name, group)
    return found


# ---- the family ----------------------------------------------------------------------------------------------------


def family(operator: Operator) -> list[tuple[str, tuple[str, str, str]]]:
    """The overloads that take the same arguments: ``("", ...)`` itself, ``("in place", ...)``, ``("out", ...)``."""
    namespace, name, overload = overload_parts(operator)
    found = [("", (namespace, name, overload))]
    schema = schema_of(operator)
    if schema is None or operator.mutates:
        return found
    import torch

    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    for other in (f"{name}_", name):
        packet = getattr(getattr(torch.ops, namespace), other, None)
        for which in packet.overloads() if packet is not None else ():
            theirs = getattr(packet, which)._schema
            plain = [(a.name, str(a.type)) for a in theirs.arguments if not a.is_out]
            outs = len(theirs.arguments) - len(plain)
            if plain == wanted and (namespace, other, which) != found[0][1]:
                found.append(("out" if outs else "in place", (namespace, other, which)))
    return found


def not_covered(statements: Sequence[Statement]) -> list[str]:
    """Overloads of the operator that none of the functions is registered for, and that take tensors."""
    import torch

    namespace, name, _ = overload_parts(statements[0].operator)
    covered = {".".join(parts) for s in statements for _, parts in family(s.operator)}
    packet = getattr(getattr(torch.ops, namespace), name)
    every = [f"{namespace}.{name}.{which}" for which in packet.overloads()]
    return [o for o in every if o not in covered and "Tensor" in str(getattr(packet, o.rsplit(".", 1)[1])._schema)]


# ---- the strategies --------------------------------------------------------------------------------------------


def _strategies(name: str, group: Sequence[Statement]) -> str:
    functions = "\n\n\n".join("\n".join(_function(statement)) for statement in group)
    helpers = _helpers(functions)
    code = "\n\n\n".join([*helpers, functions])
    placements = [n for n in ("Partial", "Placement", "Replicate", "Shard") if re.search(rf"\b{n}\b", code)]
    abstract = [name for name in ("Iterable", "Mapping", "Sequence") if f"{name}[" in code]
    lines = [
        "# mypy: allow-untyped-defs",
        f'"""Single-dim sharding strategies of {as_comment(name)}."""',
        "",
        *([f"from collections.abc import {', '.join(abstract)}"] if abstract else []),
        *(["from typing import Any"] if re.search(r"\bAny\b", code) else []),
        "",
        "import torch",
        "from torch._ops import OpOverload",
        *(
            ["from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta"]
            if "TensorMeta" in code
            else []
        ),
        "from torch.distributed.tensor._op_schema import ArgsType, KwargsType, RuntimeSchemaInfo"
        if "RuntimeSchemaInfo(" in code
        else "from torch.distributed.tensor._op_schema import ArgsType, KwargsType",
        *bracketed(
            "from torch.distributed.tensor._ops.single_dim_strategy import ",
            ["_ShardingPlaceholder", "register_single_dim_strategy"],
            "",
        ),
        f"from torch.distributed.tensor.placement_types import {', '.join(placements)}",
    ]
    return "\n".join(lines) + f"\n\n\n{code}\n"


def _helpers(code: str) -> list[str]:
    """The helpers that this code calls, with those that they call."""
    sources = {
        name: inspect.getsource(getattr(dtensor_rules, name)).rstrip()
        for name in ("tensors_in", "tensor_names", "aligned")
    }
    sources.update({n: inspect.getsource(getattr(dtensor_rules, n)).rstrip() for n in ("fitting", "reducible")})
    sources["normal_dims"] = _without_doctest(inspect.getsource(normal_dims)).rstrip()
    return [source.replace("Row]", "list[Any]]") for name, source in sources.items() if f"{name}(" in code]


def _without_doctest(source: str) -> str:
    return re.sub(r'\n\n    >>>.*?\n    """', '"""', source, flags=re.DOTALL)


def _function(statement: Statement) -> list[str]:
    kept, left_out = emitted_rules(statement)
    every = family(statement.operator)
    rules = [k.rule for k in kept]
    info = schema_parts(statement, rules)
    body = body_of(statement, kept)
    return [
        "@register_single_dim_strategy(",
        *bracketed("[", [operator_source(statement.operator, *parts) for _, parts in every], "],", 4),
        *(bracketed("schema_info=RuntimeSchemaInfo(", info, "),", 4) if info else []),
        *([f"    allow_uneven_sharding={empty_shards_too(kept)},"] if kept else []),
        ")",
        *bracketed(f"def {title_of(statement.operator)}_single_dim_strategy(", _TYPED.split(", "), f") -> {_ROWS}:"),
        *docstring(statement, kept, left_out),
        *(_with_family(body, every, statement) if kept else body),
    ]


def _with_family(body: list[str], every: Sequence[tuple[str, tuple[str, str, str]]], statement: Statement) -> list[str]:
    """The rows of forms that write: in place, only those that leave it as it lies; with `out`, that lies alike."""
    if len(every) == 1:
        return body
    kinds = {kind for kind, _ in every}
    returned = schema_of(statement.operator)
    outputs = sum("Tensor" in str(r.type) for r in returned.returns)
    last = body[-1].replace("return ", "found = ")
    lines = [*body[:-1], last]
    if "in place" in kinds:
        lines += [
            '    if op._schema.name.endswith("_"):  # self must stay as it lies',
            f"        found = [row for row in found if repr(row[0]) == repr(row[{outputs}])]",
        ]
    if "out" in kinds:
        lines += [
            "    if any(argument.is_out for argument in op._schema.arguments):  # out lies like the result",
            f"        found = [[*row, *row[:{outputs}]] for row in found]",
        ]
    return [*lines, "    return found"]


# ---- the test ------------------------------------------------------------------------------------------------------


def _tests(name: str, group: Sequence[Statement]) -> str:
    title = "".join(part.capitalize() for part in name.split("_")) or "Operator"
    parts = [list(_cases(statement)) for statement in group]
    samples = [source for _, source in dict.fromkeys(item for found in parts for *_, item in found)]
    methods = [
        line
        for statement, found in zip(group, parts)
        for line in _method(statement, [(kept, case, key) for kept, case, (key, _) in found])
    ]
    code = "\n\n\n".join(samples)
    every = code + "\n".join(methods)
    placements = [n for n in ("Partial", "Replicate", "Shard") if f"{n}(" in every]
    shared = [
        inspect.getsource(getattr(dtensor_checks, helper)).rstrip()
        for helper in ("normal", "parts", "tensors_of")
        if f"{helper}(" in every or helper != "normal"
    ]
    lines = [
        '"""The test method, with what it needs; the class is one of test/distributed/tensor."""',
        "",
        "import importlib",
        "import sys",
        "from pathlib import Path",
        "from typing import Any",
        "",
        "import torch",
        f"from torch.distributed.tensor import {', '.join(['DTensor', *placements, 'distribute_tensor'])}",
        "from torch.distributed.tensor.debug import CommDebugMode",
        "from torch.testing._internal.common_utils import run_tests",
        "from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms",
        "",
        "# From here to the next blank line: until the strategies are a part of torch, in place of those that it has.",
        "sys.path.append(str(Path(__file__).resolve().parent))",
        "PROPAGATOR = DTensor._op_dispatcher.sharding_propagator",
        *bracketed(
            "for op in [", [operator_source(s.operator, *p) for s in group for _, p in family(s.operator)], "]:"
        ),
        "    PROPAGATOR.op_strategy_funcs.pop(op, None)",
        "    PROPAGATOR.op_to_schema_info.pop(op, None)",
        f"importlib.import_module({literal(f'{name}_upstream')})",
    ]
    blocks = [
        "\n".join(lines),
        *shared,
        *samples,
        "\n".join([f"class Dist{title}Test(DTensorTestBase):", _CHECK, *methods]).rstrip(),
        'if __name__ == "__main__":\n    run_tests()',
    ]
    return "\n\n\n".join(blocks) + "\n"


_CHECK = """\
    @property
    def world_size(self):
        return 2

    def _check_rule(self, sample, inputs, outputs, written=()):
        tensors, call = sample()
        plain = [tensor.clone() for tensor in tensors]
        expected = tensors_of(call(*plain)) + [plain[i] for i in written]
        mesh = self.build_device_mesh()
        placed = []
        for seed, (tensor, placement) in enumerate(zip(tensors, inputs, strict=True)):
            if placement.is_partial():
                held = parts(tensor, placement.reduce_op, seed, self.world_size)[self.rank].to(self.device_type)
                placed.append(DTensor.from_local(held, mesh, [placement], run_check=False))
            else:
                placed.append(distribute_tensor(tensor.to(self.device_type), mesh, [placement]))
        with CommDebugMode() as comm_mode:
            found = tensors_of(call(*placed)) + [placed[i] for i in written]
        self.assertEqual(comm_mode.get_total_counts(), 0)
        wanted = [*outputs, *(inputs[i] for i in written)]
        self.assertEqual([result.placements for result in found], [(p,) for p in wanted])
        for result, truth in zip(found, expected, strict=True):
            if any(p.is_partial("avg") for p in result.placements):  # gloo has no average
                continue
            self.assertEqual(result.full_tensor().cpu(), truth, atol=1e-4, rtol=1e-4)
"""


def _cases(statement: Statement) -> Iterator[tuple[Kept, Case, tuple[str, str]]]:
    title = title_of(statement.operator)
    op = operator_source(statement.operator)
    for kept in emitted_rules(statement)[0]:
        for case in cases_of(statement, kept, 2):
            key = f"{title}_sample_{case.sample}"
            yield kept, case, (key, sample_source(statement, case.sample, f"{title}_", op).rstrip())


def _method(statement: Statement, cases: Sequence[tuple[Kept, Case, str]]) -> list[str]:
    title = title_of(statement.operator)
    lines = ["    @with_comms", f"    def test_{title}_single_dim_strategy(self):"]
    if not cases:
        return [*lines, f"        self.assertEqual(str({operator_source(statement.operator)}), "
                        f"{literal(statement.operator.overload)})", ""]  # fmt: skip
    said = None
    for kept, case, key in cases:
        if kept.rule is not said:
            said = kept.rule
            lines += textwrap.wrap(
                as_comment(str(said)), 108, initial_indent="        # ", subsequent_indent="        # "
            )
        sides = [f"[{', '.join(map(placement_source, side))}]" for side in (case.inputs, case.outputs)]
        written = [literal(tuple(kept.layout.mutated))] if kept.layout.mutated else []
        lines += bracketed("self._check_rule(", [key, *sides, *written], ")", 8)
    return [*lines, ""]


# ---- the words -----------------------------------------------------------------------------------------------------


def _words(name: str, group: Sequence[Statement]) -> str:
    lines = [
        f"[DTensor] Single-dim sharding strategy for {name}",
        "",
        "## What",
        "",
        "Registers, with `register_single_dim_strategy`, for these overloads:",
        "",
        *(f"- `{'.'.join(parts)}`{f' ({kind})' if kind else ''}" for s in group for kind, parts in family(s.operator)),
        "",
    ]
    for statement in group:
        kept, left_out = emitted_rules(statement)
        lines += [
            f"### `{as_comment(signature(statement.operator))}`",
            "",
            "| inputs | outputs | when | why |",
            "|---|---|---|---|",
        ]
        lines += [_row(k) for k in kept] or ["| replicated only | | | |"]
        lines += ["", *_left_out(left_out), *_evidence(statement)]
    lines += _replaced(group)
    missing = not_covered(group)
    if missing:
        lines += ["Not covered, other arguments: " + ", ".join(f"`{o}`" for o in missing) + ".", ""]
    lines += [
        "## Test plan",
        "",
        f"`python test/distributed/tensor/test_{name}_upstream.py`: each rule on calls of two ranks: no communication,",
        "the placements of the results, their numbers. Rows that hold for averages follow from those for sums.",
    ]
    return "\n".join(lines) + "\n"


def _replaced(group: Sequence[Statement]) -> list[str]:
    """What this PyTorch has for the overloads, which the functions take the place of."""
    from torch.distributed.tensor import DTensor

    propagator = DTensor._op_dispatcher.sharding_propagator
    tables = (propagator.op_single_dim_strategy_funcs, propagator.op_strategy_funcs, propagator.op_to_rules)
    found: dict[str, list[str]] = {}
    for name in (".".join(parts) for s in group for _, parts in family(s.operator)):
        for table in tables:
            for function in [function for op, function in table.items() if str(op) == name]:
                function = getattr(function, "func", function)
                place = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"
                found.setdefault(place, []).append(name)
    told = [f"- `{place}`, for {', '.join(f'`{name}`' for name in names)}" for place, names in found.items()]
    return ["In place of:", "", *told, ""] if told else []


def _row(kept: Kept) -> str:
    rule = kept.rule
    cells = [", ".join(map(str, rule.inputs)), ", ".join(map(str, rule.outputs)),
             " and ".join(map(str, rule.conditions)), rule.justification]  # fmt: skip
    return f"| {' | '.join(as_comment(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _left_out(left_out: Sequence[LeftOut]) -> list[str]:
    if not left_out:
        return []
    return ["Valid, but not registered:", "", *(f"- {as_comment(str(o.rule))}: {o.reason}" for o in left_out), ""]


def _evidence(statement: Statement) -> list[str]:
    right, every = statement.held_out
    seen = [f"{statement.combinations} combinations of placements of {len(statement.samples)} calls run in float64"]
    if statement.fresh:
        seen.append(f"{statement.fresh} fresh calls on which the rules were attacked")
    if every:
        seen.append(f"{right} of {every} rows of calls drawn afterwards agree")
    return ["Evidence: " + "; ".join(seen) + ".", ""]
