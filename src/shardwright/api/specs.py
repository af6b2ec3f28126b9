"""Shardings as users mirror them over arguments and results, and requests made of them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SpecError, near_misses
from ..frontends.base import Framework, Source
from ..plans.requests import Request, is_spec, spec_text


def tree_requests(
    source: Source, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], in_specs: Any, out_specs: Any
) -> list[Request]:
    """What ``in_specs`` and ``out_specs`` say, as requests."""
    names = [about.name for about in source.inputs_are]
    forward = getattr(fn, "forward", fn)  # a module's own arguments are those of its forward
    given = spread(by_position(in_specs, forward, args, kwargs), (args, dict(kwargs)), "in_specs", source.framework)
    found = [
        Request("in_specs", (name, spec_text(spec)), spec=spec) for name, spec in zip(names, given) if spec is not None
    ]
    if out_specs is not None:
        wanted = spread(out_specs, source.result_tree(), "out_specs", source.framework)
        found += [
            Request("out_specs", (f"output {i}", spec_text(spec)), spec=spec)
            for i, spec in enumerate(wanted)
            if spec is not None
        ]
    return found


def by_position(specs: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``in_specs`` as a pair that mirrors (args, kwargs)."""
    if specs is None or is_spec(specs):
        return (specs, specs)
    if isinstance(specs, Mapping):
        names = list(inspect.signature(fn).parameters)
        known = {*names[: len(args)], *kwargs}
        for name in specs:
            if name not in known:
                raise SpecError(
                    f"in_specs names {name!r}, which is not among the arguments",
                    help=near_misses(str(name), map(str, known)),
                )
        return tuple(specs.get(name) for name in names[: len(args)]), {k: specs.get(k) for k in kwargs}
    if not isinstance(specs, list | tuple):
        raise SpecError(
            f"in_specs cannot be a {type(specs).__name__}", help="give one spec for each argument, or a dict"
        )
    specs = tuple(specs)
    if len(specs) != len(args):
        raise SpecError(
            f"{len(specs)} in_specs for {len(args)} positional arguments",
            help="give one for each, or a dict by parameter name",
        )
    return specs, dict.fromkeys(kwargs)


def spread(specs: Any, tree: Any, what: str, framework: Framework) -> list[Any]:
    """One spec for each array of a tree; a spec in place of a container stands for all that is in it."""
    inner = _parts(tree)
    if inner is None and isinstance(specs, list | tuple) and not is_spec(specs) and any(map(is_spec, specs)):
        raise SpecError(
            f"{what} has {len(specs)} shardings for one array", help="give one for each array, as it is nested"
        )
    if specs is None or is_spec(specs) or inner is None:
        return [specs] * len(framework.leaves(tree))
    if isinstance(specs, Mapping):
        unknown = [key for key in specs if key not in inner]
        if unknown:
            raise SpecError(
                f"{what} names {unknown[0]!r}, which is not there",
                rows=[("there is", ", ".join(map(str, inner)))],
                help=near_misses(str(unknown[0]), map(str, inner)),
            )
        return [spec for key, part in inner.items() for spec in spread(specs.get(key), part, what, framework)]
    if not isinstance(specs, list | tuple):
        raise SpecError(f"{what} cannot hold a {type(specs).__name__}", help='give P("dp", None), text, or None')
    listed = list(specs)
    if len(listed) != len(inner):
        raise SpecError(f"{what} has {len(listed)} entries where there are {len(inner)}")
    return [spec for one, part in zip(listed, inner.values()) for spec in spread(one, part, what, framework)]


def _parts(tree: Any) -> dict[Any, Any] | None:
    """The parts of a container by key; None for a leaf."""
    if isinstance(tree, Mapping):
        return dict(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree))
    if isinstance(tree, list | tuple):
        return dict(enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    return None
