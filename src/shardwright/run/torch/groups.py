"""Process groups for the axes of a mesh: made once, in the same order on every rank, and kept.

A group is known by its ranks.  It is never the default group, whose timeout is not ours to set; groups that a PyTorch
`DeviceMesh` brings are used as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from ...spec.mesh import DeviceMesh
from .private import default_store


@dataclass(frozen=True)
class Group:
    """Processes that talk to each other."""

    name: str
    """PyTorch's name of the process group."""
    ranks: tuple[int, ...]
    """In the order of the process group, which need not be that of the mesh."""
    on_host: bool = False
    """Whether processes send what lies in the host's memory, by gloo."""


class GroupSource(Protocol):
    """Where emitted programs get their groups from."""

    def of(self, ranks: Sequence[int]) -> Group: ...


class NamedGroups:
    """Groups by name only, for programs that are looked at or run on stand-ins: no process is asked.

    >>> NamedGroups().of([3, 1])
    Group(name='ranks_1_3', ranks=(1, 3), on_host=False)
    """

    def of(self, ranks: Sequence[int]) -> Group:
        members = tuple(sorted(ranks))
        return Group("ranks_" + "_".join(map(str, members)), members)


_made: dict[tuple[int, tuple[int, ...]], Any] = {}
"""By default group and ranks: for all engines of the process, since making one takes all its members."""
_worlds: dict[int, Any] = {}


def world() -> int:
    """A number for the default process group, never given to a later one."""
    store = default_store()
    _worlds[id(store)] = store  # kept alive, so that no other object is called so
    return id(store)


class ProcessGroups:
    """Groups of real processes."""

    def __init__(self, rank: int, timeout: timedelta, torch_mesh: Any = None, on_host: bool = True) -> None:
        self.rank = rank
        self.timeout = timeout
        self.on_host = on_host
        if torch_mesh is not None:
            self._take_over(torch_mesh)

    def _take_over(self, torch_mesh: Any) -> None:
        for dim in range(torch_mesh.ndim):
            if torch_mesh.get_coordinate() is not None:
                group = torch_mesh.get_group(dim)
                _made[self._key(dist.get_process_group_ranks(group))] = group

    def _key(self, ranks: Iterable[int]) -> tuple[int, tuple[int, ...]]:
        return world(), tuple(sorted(ranks))

    def process_group(self, ranks: Sequence[int]) -> Any:
        """All ranks of the mesh have to ask, each for its own group, as often as the others: PyTorch puts the number of
        groups that a process has made into the name."""
        key = self._key(ranks)
        if key not in _made:
            _made[key] = dist.new_group(list(key[1]), timeout=self.timeout, use_local_synchronization=True)
        return _made[key]

    def of(self, ranks: Sequence[int]) -> Group:
        group = self.process_group(ranks)
        return Group(group.group_name, tuple(dist.get_process_group_ranks(group)), self.on_host)


def ranks_along(mesh: DeviceMesh, position: int, axes: Iterable[Any]) -> tuple[int, ...]:
    """The ranks that a position talks to over these axes, itself included, in order along them.

    >>> from shardwright.spec.mesh import DeviceMesh
    >>> ranks_along(DeviceMesh("dp=2, tp=2", device_ids=[3, 2, 1, 0]), 1, ["dp"])
    (2, 0)
    """
    for group in mesh.groups(axes):
        if position in group:
            return tuple(mesh.device_ids[member] for member in group)
    raise AssertionError(f"position {position} is in no group of {mesh}")
