"""What users hand to `plan` and its kin, looked at before any work is done."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import MeshError, SpecError, TraceError, near_misses
from ..spec.mesh import DeviceMesh


def mesh_of(mesh: Any) -> DeviceMesh:
    """A mesh with at least one axis, in whatever form it is given."""
    found = DeviceMesh.of(mesh)
    if not found.axes:
        raise MeshError(
            "the mesh has no axis", rows=[("mesh", repr(mesh))], help='write mesh="dp=2, tp=4", or "d=1" for one device'
        )
    return found


def check_time_limit(time_limit: Any) -> None:
    """None, or seconds."""
    if time_limit is None:
        return
    number = isinstance(time_limit, int | float) and not isinstance(time_limit, bool)
    if not number or not 0 < time_limit < math.inf:
        raise SpecError(
            f"time_limit takes seconds, more than 0, not {time_limit!r}",
            help="write time_limit=30 for half a minute, or leave it out",
        )


def check_name(name: Any, what: str, known: Iterable[str]) -> None:
    """One of the names that there are."""
    names = list(known)
    if not isinstance(name, str) or name not in names:
        raise SpecError(
            f"no {what} is called {name!r}", rows=[("known", ", ".join(names))],
            help=near_misses(name, names) if isinstance(name, str) else f"give the name of a {what} as text",
        )  # fmt: skip


def check_path(path: Any, what: str) -> None:
    """None, or where a file is."""
    if path is not None and not isinstance(path, str | os.PathLike):
        raise SpecError(f"{what} takes the path of a file, not {path!r}")


def check_call(
    fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Callable[..., Any], name: str = "plan"
) -> None:
    """That ``fn`` can be called so; arguments that are no ``options`` of ours are the function's."""
    if not callable(fn):
        raise SpecError(
            f"{name} takes a function or a module, not a {type(fn).__name__}",
            help=f"write {name}(fn, *args, mesh=...), where fn(*args) is what is to be split",
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # builtins and the like do not say
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        ours = [name for name, p in inspect.signature(options).parameters.items() if p.kind is p.KEYWORD_ONLY]
        unknown = [name for name in kwargs if name not in signature.parameters]
        close = near_misses(unknown[0], ours) if unknown else None
        called = getattr(fn, "__name__", type(fn).__name__)
        raise TraceError(
            f"{called} cannot be called so: {error}",
            rows=[("signature", f"{called}{signature}")],
            help=close or "give the function's own arguments right after it",
        ) from None
