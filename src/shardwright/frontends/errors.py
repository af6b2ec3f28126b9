"""Errors of capturing a program."""

from __future__ import annotations

from ..errors import ShardwrightError


class TraceError(ShardwrightError, TypeError):
    """Something a traced function cannot do, with what to write instead."""


class TraceAttributeError(TraceError, AttributeError):
    """An attribute that arrays have and traced values do not; ``hasattr`` says no."""
