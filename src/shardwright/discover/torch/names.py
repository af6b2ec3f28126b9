"""Names to functions and back, in PyTorch: looked up attribute by attribute, with near misses."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from ...errors import DiscoverError, near_misses
from .private import OpNamespace, OpOverloadPacket, registered_names

HOMES = ("torch", "torch.linalg", "torch.nn.functional", "torch.special", "torch.fft", "torch.Tensor")
"""Where public operators live; a name missing in one is looked for in the others."""


def find_callable(target: str) -> Any:
    """Look a dotted name up, attribute by attribute."""
    text = target.strip().replace("::", ".").replace(":", ".")
    parts = text.split(".")
    if not all(part.isidentifier() for part in parts):
        raise DiscoverError(f"{target!r} is no dotted name", help="write torch.cross, or aten.add.Tensor")
    if parts[0] == "torch":
        place: Any = torch.ops if parts[:2] == ["torch", "ops"] else torch
        done, rest = (2, parts[2:]) if place is torch.ops else (1, parts[1:])
        if not rest:
            raise DiscoverError(f"{text} is a module, not an operator", help="name one of its functions: torch.cross")
    elif len(parts) > 1 and parts[0] in _namespaces():
        place, done, rest = torch.ops, 0, parts
    else:
        place, done, rest = _import_longest(parts, target)
    for part in rest:
        place = _step(place, part, ".".join(parts[:done]) or "torch.ops", target)
        done += 1
    return place


def _step(place: Any, part: str, where: str, target: str) -> Any:
    if place is torch.ops and part not in _namespaces():
        raise DiscoverError(
            f"no operators are registered under {part!r}",
            rows=[("target", target)],
            help=near_misses(part, _namespaces()) or "import the library that registers them first",
        )
    try:
        return getattr(place, part)
    except (AttributeError, RuntimeError):
        raise DiscoverError(
            f"{where} has no {part!r}", rows=[("target", target)], help=_meant(place, part, where)
        ) from None


def _meant(place: Any, part: str, where: str) -> str | None:
    if isinstance(place, OpOverloadPacket):
        overloads: list[str] = place.overloads()  # type: ignore[no-untyped-call]
        return near_misses(part, overloads) or f"its overloads are {', '.join(overloads)}"
    if isinstance(place, OpNamespace):
        return near_misses(part, (op.split("::")[1].split(".")[0] for op in _registered(place.name)))
    # a function that lives in another home is likelier meant than one that is spelled alike
    elsewhere = [home for home in HOMES if home != where and hasattr(_home(home), part)]
    if elsewhere:
        return "did you mean " + " or ".join(repr(f"{home}.{part}") for home in elsewhere) + "?"
    return near_misses(part, dir(place))


def _home(name: str) -> Any:
    place: Any = torch
    for part in name.split(".")[1:]:
        place = getattr(place, part)
    return place


def _import_longest(parts: list[str], target: str) -> tuple[Any, int, list[str]]:
    """The longest prefix that is a module: users' own functions."""
    for length in range(len(parts) - 1, 0, -1):
        try:
            return importlib.import_module(".".join(parts[:length])), length, parts[length:]
        except ModuleNotFoundError:
            continue
    homes = [home for home in HOMES if hasattr(_home(home), parts[-1])]
    raise DiscoverError(
        f"{target!r} is neither in torch nor in a module that can be imported",
        help=f"write {' or '.join(f'{home}.{parts[-1]}' for home in homes)}"
        if homes
        else near_misses(parts[0], _namespaces()) or "write torch.cross, aten.add.Tensor or yourmodule.yourfunction",
    )


def _namespaces() -> set[str]:
    return {op.split("::")[0] for op in registered_names()}


def _registered(namespace: str) -> Iterator[str]:
    return (op for op in registered_names() if op.startswith(namespace + "::"))


def name_of(function: Any) -> str:
    """How a user writes this function, if it is torch's; else its module and name."""
    own = getattr(function, "__name__", "") or type(function).__name__
    if isinstance(function, OpOverloadPacket):
        return str(function)
    for home in HOMES:
        short = own.removeprefix(home.rpartition(".")[2] + "_")
        for spelling in (own, short):
            if getattr(_home(home), spelling, None) is function:
                return f"{home}.{spelling}"
    # builtins have no module, and a method's is its class
    module = getattr(function, "__module__", None) or ""
    return f"{module}.{getattr(function, '__qualname__', own)}".strip(".")


def packet_of(name: str, function: Any = None) -> Any:
    """ATen's overloads of the same name, or None: ``torch.linalg.cross`` is ``aten.linalg_cross``."""
    parts = name.split(".")
    if parts[0] != "torch":
        return None
    family = parts[1] if len(parts) == 3 and parts[1] in ("linalg", "special", "fft") else ""
    for spelling in (f"{family}_{parts[-1]}" if family else parts[-1], getattr(function, "__name__", "")):
        # packets of dunder names exist for TorchScript's own sake
        if spelling and not spelling.startswith("__"):
            packet = getattr(torch.ops.aten, spelling, None)
            if isinstance(packet, OpOverloadPacket):
                return packet
    return None
