"""From a statement to a Python file that registers it by DTensor's public `register_sharding`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ..operator import Operator
from ..statement import Rule, Statement
from .source import as_comment, emitted_rules, overload_parts, schema_of
from .strategy import TORCH, Origin, body_of, docstring, header, needs_key, schema_parts, title_of


def emit_public(statement: Statement, origin: Origin = TORCH) -> str:
    """The file.  Two gaps of the public function are mended by private names, where the operator meets them."""
    operator = statement.operator
    kept, left_out = emitted_rules(statement)
    title = title_of(operator)
    returned = _returned(operator)
    body = [
        f"def {title}_rows(op, args_schema, kwargs_schema):",
        *docstring(statement, kept, left_out),
        *body_of(statement, kept, "Shard"),
        "",
        "",
        *_before(operator),
        "@register_sharding(OP)",
        f"def {title}_sharding(*args, **kwargs):",
        f'    """Acceptable shardings of {as_comment(operator.name)}: pairs of outputs and inputs."""',
        f"    return acceptable({title}_rows(OP, args, kwargs), {returned}, tensors_in([*args, *kwargs.values()]))",
        "",
        "",
        *_after(statement, [k.rule for k in kept]),
        "clear_cache()",
    ]
    text = "\n".join(body) + "\n"
    about = f"Importing this file registers them for {operator.overload}, by the public `register_sharding`."
    return "\n\n".join([header(statement, origin, about, text) + "\n", text])


def _returned(operator: Operator) -> int:
    schema = schema_of(operator)
    return 1 if schema is None else sum("Tensor" in str(r.type) for r in schema.returns)


def _before(operator: Operator) -> list[str]:
    """DTensor looks up single-dim strategies first, so one that it has would be taken instead of the public one."""
    if not _has_single_dim(operator):
        return []
    return ["# Where PyTorch has a single-dim strategy it is taken first: private, since there is no public way.",
            "forget(OP)", "", ""]  # fmt: skip


def _has_single_dim(operator: Operator) -> bool:
    try:
        tensor: Any = importlib.import_module("torch.distributed.tensor")
    except ImportError:
        return False
    table = tensor.DTensor._op_dispatcher.sharding_propagator.op_single_dim_strategy_funcs
    return any(str(op) == ".".join(overload_parts(operator)) for op in table)


def _after(statement: Statement, rules: Sequence[Rule]) -> list[str]:
    """`register_sharding` keeps whole numbers only in its cache's key: what else decides must be told to it."""
    if not needs_key(statement, rules):
        return []
    parts = ", ".join(schema_parts(statement, rules, pytree=True))
    return ["# Private: the public function keeps nothing but whole numbers in the key of DTensor's cache.",
            f"remember(OP, RuntimeSchemaInfo({parts}))"]  # fmt: skip
