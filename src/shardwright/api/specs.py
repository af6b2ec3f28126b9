"""What says a sharding, as users write it."""

from __future__ import annotations

from typing import Any

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
