"""What a checkpoint holds beside tensors: the names of ``model.state_dict()``, and the numbers in ``param_groups``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ....errors import CheckpointError
from ...base import BUFFER, PARAMETER
from ..recording.slots import Slot

Roots = Sequence[tuple[str, Any]]
"""Modules and optimizers, by name."""
Groups = Sequence[Mapping[str, Any]]


def saved_names(roots: Roots, slots: Sequence[Slot]) -> dict[str, tuple[str, ...]]:
    """Of parameters and buffers; tied weights have several names, buffers that are not persistent have none.

    >>> model = torch.nn.BatchNorm1d(4)
    >>> slot = Slot(["running_mean"], BUFFER, None, lambda: model.running_mean, print)
    >>> saved_names([("", model)], [slot])
    {'running_mean': ('running_mean',)}
    """
    modules = [(name, root) for name, root in roots if isinstance(root, torch.nn.Module)]
    by_tensor: dict[int, list[str]] = {}
    every: set[str] = set()
    for name, root in modules:
        prefix = f"{name}." if name and len(modules) > 1 else ""
        for key, tensor in root.state_dict(keep_vars=True).items():
            every.add(prefix + key)
            if isinstance(tensor, torch.Tensor):
                by_tensor.setdefault(id(tensor), []).append(prefix + key)
    made = {}
    for slot in slots:
        if slot.kind in (PARAMETER, BUFFER):
            found = by_tensor.get(id(slot.read())) or [name for name in slot.names if name in every]
            made[slot.name] = tuple(found or slot.names[: slot.kind == PARAMETER])
    return made


def option_groups(roots: Roots, slots: Sequence[Slot]) -> list[dict[str, Any]]:
    names = saved_names(roots, slots)
    owners = {id(slot.owner): names[slot.name][0] for slot in slots if slot.kind == PARAMETER}
    return [
        {"params": [owners[id(parameter)] for parameter in group["params"]], **_numbers(group)}
        for group in _groups(roots)
    ]


def _groups(roots: Roots) -> Iterator[dict[str, Any]]:
    """Of all optimizers, one after the other."""
    for _, root in roots:
        if isinstance(root, torch.optim.Optimizer):
            yield from root.param_groups


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in group.items():
        if _is_number(value):
            found[key] = _plain(value)
        elif isinstance(value, tuple | list) and value and all(map(_is_number, value)):
            found[key] = tuple(map(_plain, value))
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def check_option_groups(here: Groups, there: Groups) -> None:
    """The same groups of the same parameters, with numbers for options."""
    if len(here) != len(there):
        raise CheckpointError(
            f"the checkpoint has {len(there)} groups of parameters, the optimizer {len(here)}", help=_SAME
        )
    for g, (mine, other) in enumerate(zip(here, there)):
        members = other.get("params")
        if not isinstance(members, list | tuple) or list(members) != mine["params"]:
            named = set(members) if isinstance(members, list | tuple) else set()
            odd = sorted(map(str, named ^ set(mine["params"])))
            raise CheckpointError(
                f"group {g} of the optimizer has other parameters in the checkpoint",
                rows=[("differ", ", ".join(odd[:5]) if odd else "in their order")],
                help=_SAME,
            )
        for key, value in other.items():
            several = isinstance(value, tuple | list)
            plain = all(type(part) in (int, float) for part in (value if several else [value]))
            if key != "params" and not plain:
                raise CheckpointError(f"option {key!r} of group {g} is no number in the checkpoint")


_SAME = "make the optimizer as it was when the checkpoint was saved"


def set_option_groups(roots: Roots, groups: Groups) -> None:
    for group, saved in zip(_groups(roots), groups, strict=True):
        for key, value in saved.items():
            if key == "params":
                continue
            present = group.get(key)
            if isinstance(present, torch.Tensor):
                present.fill_(value)
            elif isinstance(value, tuple | list):
                group[key] = list(value) if isinstance(present, list) else tuple(value)
            else:
                group[key] = value
