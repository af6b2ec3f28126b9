"""Ops that belong to no frontend: what passes put into graphs.

``core.constraint`` returns its operand and carries the user's sharding in ``specs``; ``core.barrier`` lets
shardings through one way only; ``core.constant`` is data known when the program is written.
"""

from __future__ import annotations

CONSTRAINT = "core.constraint"
BARRIER = "core.barrier"
CONSTANT = "core.constant"
