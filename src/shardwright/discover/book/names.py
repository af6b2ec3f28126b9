"""Which ops are whose: the names under which frameworks write theirs into the rule book."""

from __future__ import annotations

PREFIXES = ("aten.", "shardwright.", "random.")
"""Of ops that PyTorch programs hold."""
