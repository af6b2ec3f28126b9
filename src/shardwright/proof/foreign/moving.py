"""The commonest movements, without asking the frontend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .calls import Calling
from .numbers import Array, Number

Move = Callable[[Number, Calling], list[Number]]


def _each(move: Callable[[Array, Calling], Any]) -> Move:
    return lambda x, call: [x.map(lambda part: np.asarray(move(part, call)))]


def _reshape(part: Array, call: Calling) -> Any:
    return part.reshape(call.shape)


def _same(part: Array, call: Calling) -> Any:
    return part


def _transpose(part: Array, call: Calling) -> Any:
    return part if not part.ndim else part.swapaxes(call.attrs["dim0"], call.attrs["dim1"])


def _slice(part: Array, call: Calling) -> Any:
    where = (slice(None),) * call.attrs["dim"]
    return part[(*where, slice(call.attrs["start"], call.attrs["end"], call.attrs.get("step", 1)))]


def _select(part: Array, call: Calling) -> Any:
    return np.take(part, call.attrs["index"], call.attrs["dim"])


def _split(x: Number, call: Calling) -> list[Number]:
    dim, at, made = call.attrs["dim"] % len(x.shape), 0, []
    for type in call.results:
        where = (*(slice(None),) * dim, slice(at, at + type.shape[dim]))
        made.append(x.map(lambda part, where=where: part[where]))  # type: ignore[misc]
        at += type.shape[dim]
    return made


MOVES: dict[str, Move] = {
    **dict.fromkeys(
        ("aten.view", "aten._unsafe_view", "aten.reshape", "aten._reshape_alias", "aten.unsqueeze", "aten.squeeze",
         "aten.squeeze.dim", "aten.squeeze.dims"),
        _each(_reshape),
    ),
    **dict.fromkeys(("aten.clone", "aten.alias", "aten.detach", "aten.lift_fresh", "aten.contiguous"), _each(_same)),
    "aten.t": _each(lambda part, call: part.T),
    "aten.transpose.int": _each(_transpose),
    "aten.permute": _each(lambda part, call: part.transpose(call.attrs["dims"])),
    "aten.expand": _each(lambda part, call: np.broadcast_to(part, call.shape)),
    "aten.slice.Tensor": _each(_slice),
    "aten.select.int": _each(_select),
    "aten.split.Tensor": _split,
    "aten.split_with_sizes": _split,
}  # fmt: skip


def joined(parts: Sequence[Number], call: Calling) -> Number:
    """Numbers side by side, or along a new dim; an empty vector goes with any shape and adds nothing."""
    along_new = call.op == "aten.stack"
    parts = [x for x in parts if along_new or len(x.shape) == len(call.shape)]
    dim = call.attrs["dim"] % len(call.shape)
    residues, heights = ([getattr(x, name) for x in parts] for name in ("residue", "height"))
    put = np.stack if along_new else np.concatenate
    return Number(parts[0].dtype, None, put(residues, dim), put(heights, dim))
