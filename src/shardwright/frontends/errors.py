"""The errors of capturing a program, under the name that frontends use."""

from __future__ import annotations

from ..errors import TraceAttributeError, TraceError

__all__ = ["TraceAttributeError", "TraceError"]
