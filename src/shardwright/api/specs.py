"""What says a sharding, as users write it."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..errors import ShardwrightError, SpecError, near_misses
from ..ir.graph import Graph
from ..spec.mesh import DeviceMesh
from ..spec.sharding import P, ShardingSpec


def spec_text(spec: Any) -> str:
    """A sharding as text, for a program that does not know its mesh yet."""
    if isinstance(spec, str):
        return spec
    return str(spec if isinstance(spec, ShardingSpec | P) else P(*spec))


def is_spec(item: Any) -> bool:
    """Whether something says a sharding by itself, rather than being a container of such things."""
    if isinstance(item, str | P | ShardingSpec) or type(item).__name__ in ("PartitionSpec", "NamedSharding"):
        return True
    return isinstance(item, list | tuple) and bool(item) and all(hasattr(entry, "is_shard") for entry in item)


def by_pattern(specs: Mapping[str, Any], graph: Graph, mesh: DeviceMesh) -> dict[int, ShardingSpec]:
    """Shardings for inputs by name or pattern (``*.q_proj.weight``); the first that matches counts."""
    found: dict[int, ShardingSpec] = {}
    names = {value: graph.values[value].name for value in graph.inputs}
    for pattern, spec in specs.items():
        matched = [value for value, name in names.items() if fnmatchcase(name, pattern)]
        if not matched:
            raise SpecError(
                f"a sharding is given for {pattern!r}, but no input is called so",
                rows=[("inputs", ", ".join([*names.values()][:8]) + (", ..." if len(names) > 8 else ""))],
                help=near_misses(pattern, names.values()),
            )
        for value in matched:
            if value in found or spec is None:
                continue
            type = graph.type(value)
            try:
                found[value] = ShardingSpec.of(spec, mesh, type.rank)
            except ShardwrightError as error:
                raise error.add("for", f"{names[value]}: {list(type.shape)}, by {pattern!r}") from None
    return found
