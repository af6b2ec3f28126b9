"""Operators of one's own: found in a file, called as the user writes it, with what they mutate; and their gradients.

>>> operator = torch_operator("torch.add")
>>> written_call(operator, "add(f32[8, 6], f32[6], alpha=2)").shapes
((8, 6), (6,))
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...errors import DiscoverError, near_misses
from ..operator import Argument, Array, Operator, Role, Sample, Slot, leaves
from .names import find_callable
from .ops import TORCH, tensors_in, torch_operator
from .private import custom_definition

DTYPES = {
    **dict.fromkeys(("f64", "f32", "f16", "bf16"), np.dtype(np.float64)),
    **dict.fromkeys(("i64", "i32", "i16", "i8", "u8"), np.dtype(np.int64)),
    **dict.fromkeys(("c128", "c64"), np.dtype(np.complex128)),
    "bool": np.dtype(np.bool_),
}
"""What tensors are written as; discovery judges in exact arithmetic, so every float is a float64."""


def operator_in(where: str) -> Any:
    """The function that ``FILE.py:NAME`` names; anything else is a dotted name."""
    place, colon, name = where.rpartition(":")
    if not colon or not place.endswith(".py"):
        return where
    path = Path(place)
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise DiscoverError(f"there is no file {place!r}", help="write FILE.py:NAME")
    module = sys.modules.get(path.stem)
    if module is None or getattr(module, "__file__", None) != str(path):
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.resolve().parent))  # what stands beside the file is found
        spec.loader.exec_module(module)
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]
    if not callable(found):
        names = [n for n, item in vars(module).items() if callable(item)]
        raise DiscoverError(f"{place} has no operator {name!r}", help=near_misses(name, names))
    return found


def with_facts(operator: Operator) -> Operator:
    """The operator with its documentation, and the Python code behind it, where there is any."""
    code = custom_definition(operator.overload) if operator.overload else None
    texts = []
    for name in (operator.name, f"torch.Tensor.{operator.short_name}"):
        try:
            texts.append(inspect.getdoc(find_callable(name)) or "")
        except DiscoverError:
            continue
    facts = {**operator.facts, "documents": tuple(text for text in texts if text)}
    return replace(operator, facts={**facts, "code": code} if code is not None else facts)


# ---- calls as they are written --------------------------------------------------------------------------------


def written_call(operator: Operator, text: str) -> Sample:
    """The call that ``op(f32[8, 6], [f32[4], f32[4]], mode='a')`` describes, with normal numbers."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or any(keyword.arg is None for keyword in call.keywords):
        raise DiscoverError(f"{text!r} is no call", help="write op(f32[8, 6], f32[6], dim=1)")
    tensors: list[Array] = []
    args = tuple(_value(node, tensors, text) for node in call.args)
    kwargs = {str(keyword.arg): _value(keyword.value, tensors, text) for keyword in call.keywords}
    real = any(array.dtype.kind in "fc" for array in tensors)
    roles: list[Role] = [
        "mask" if a.dtype.kind == "b" else "index" if real and a.dtype.kind == "i" else "data" for a in tensors
    ]
    sample = Sample(args, kwargs, tuple(tensors), tuple(roles), "as written")
    library = operator.library
    given, named = sample.fill([library.copy(library.tensor(array)) for array in tensors])
    try:
        operator.call(*given, **named)
    except Exception as error:  # whatever the library raises: its words are the user's to read
        lines = str(error).strip().splitlines() or [""]
        rows = [("call", text), ("it says", lines[0])]
        raise DiscoverError(f"{operator.name} does not run as it is called", rows=rows) from None
    return sample


def _value(node: ast.expr, tensors: list[Array], text: str) -> Any:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in DTYPES:
        sizes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        tensors.append(_drawn(tuple(ast.literal_eval(size) for size in sizes), DTYPES[node.value.id], len(tensors)))
        return Slot(len(tensors) - 1)
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item, tensors, text) for item in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)
    try:
        return ast.literal_eval(node)
    except ValueError:
        words = ", ".join(DTYPES)
        raise DiscoverError(
            f"{ast.unparse(node)!r} is neither a tensor nor a plain value", rows=[("call", text)],
            help=f"write tensors as f32[8, 6]; dtypes are {words}",
        ) from None  # fmt: skip


def _drawn(shape: tuple[int, ...], dtype: np.dtype[Any], number: int) -> Array:
    rng = np.random.default_rng(42 + number)
    if dtype.kind == "i":
        return np.asarray(rng.integers(0, 2, shape), dtype=dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    drawn = rng.standard_normal(shape)
    return np.asarray(drawn + 1j * rng.standard_normal(shape) if dtype.kind == "c" else drawn, dtype=dtype)


# ---- what an operator writes to, and its gradient -----------------------------------------------------------


def with_mutations(operator: Operator, samples: Sequence[Sample]) -> Operator:
    """A function that returns no tensor, but changes some that it was given: those are its results.

    One's own may write to others than the first, whatever its name ends with.
    """
    if operator.overload or "packet" in operator.facts or not samples:
        return operator
    sample = samples[0]
    tensors = [TORCH.tensor(array.copy()) for array in sample.tensors]
    args, kwargs = sample.fill(tensors)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            returned = tensors_in(operator.call(*args, **kwargs))
    except Exception:  # whatever the library raises: the samples will say so
        return operator
    pairs = zip(sample.tensors, tensors, sample.tensor_names(operator))
    written = tuple(n for before, after, n in pairs if not np.array_equal(before, TORCH.array(after), equal_nan=False))
    fresh = [r for r in returned if not any(r is t for t in tensors)]
    return replace(operator, mutates=written) if written and not fresh else operator


def gradient_of(operator: Operator, samples: Sequence[Sample]) -> tuple[Operator, list[Sample]]:
    """The operator that gives the gradient of the inputs from that of the results, and its calls."""

    def gradient(*args: Any, grads: Sequence[Any], **kwargs: Any) -> list[Any]:
        given = [a for a in leaves((list(args), list(kwargs.values()))) if isinstance(a, torch.Tensor)]
        smooth = [a for a in given if a.is_floating_point() or a.is_complex()]
        fresh = {id(a): a.detach().clone().requires_grad_() for a in smooth}

        def swapped(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(swapped(item) for item in value)
            return fresh.get(id(value), value)

        with torch.enable_grad():
            made = operator.call(*map(swapped, args), **{n: swapped(v) for n, v in kwargs.items()})
            results = [r for r in tensors_in(made) if r.requires_grad]
            inputs = [fresh[id(a)] for a in smooth]
            return list(torch.autograd.grad(results, inputs, list(grads)[: len(results)], materialize_grads=True))

    found: list[Sample] = []
    for sample in samples:
        args, kwargs = sample.fill([TORCH.tensor(array.copy()) for array in sample.tensors])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = [r for r in tensors_in(operator.call(*args, **kwargs)) if r.is_floating_point()]
        except Exception:  # whatever the library raises: this call is no sample
            continue
        if not made or operator.mutates:
            continue
        rng = np.random.default_rng(7)
        pulled = tuple(np.asarray(rng.standard_normal(tuple(r.shape))).astype(TORCH.array(r).dtype) for r in made)
        slots = [Slot(len(sample.tensors) + i) for i in range(len(pulled))]
        data: Role = "data"
        more = tuple(data for _ in pulled)
        roles: tuple[Role, ...] = (*sample.roles, *more)
        found.append(
            Sample(sample.args, {**sample.kwargs, "grads": slots}, (*sample.tensors, *pulled), roles, sample.label)
        )
    if not found:
        raise DiscoverError(f"{operator.name} has no gradient on the calls at hand")
    arguments = (*operator.arguments, Argument("grads", True, keyword_only=True, type="Tensor[]"))
    facts = {**operator.facts, "code": operator.facts.get("code", operator.call)}
    backward = Operator(f"gradient of {operator.name}", gradient, TORCH, arguments, facts=facts)
    return backward, found


def torch_operator_of(target: object) -> Operator:
    """Any operator that a user may name or give: a function, an overload, a custom operator's definition."""
    found = operator_in(target) if isinstance(target, str) else target
    overload = getattr(found, "_opoverload", None)  # torch.library.custom_op gives an object that has it
    return torch_operator(overload if overload is not None else found)
