"""The meshes and sizes that every rule is run on."""

from __future__ import annotations

from shardwright.spec.mesh import DeviceMesh

LINE = [DeviceMesh("x=2"), DeviceMesh("x=3"), DeviceMesh("x=4")]
GRID = [DeviceMesh("x=2, y=2"), DeviceMesh("x=2, y=3")]
SIZES = {"even": (12, 12), "uneven": (7, 5), "ones": (1, 1), "empty": (0, 4)}
"""Of ``n`` and ``m`` in the shapes of samples."""
