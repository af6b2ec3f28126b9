"""Values that share memory.

A graph changes nothing in place, a NumPy program does: ``row = x[0]; row += 1`` changes ``x``.  So a traced array
that NumPy would have made as a view remembers its parent, how to look at it *again*, and how to *put back* what was
written through the view.  A write updates the chain up to the array that owns the memory; the other views of that
memory are then out of date, and look again when they are next read.

Whether ``reshape`` makes a view or a copy depends on strides, which a trace does not know.  Such a result is used
freely, but reading one side after writing to the other is an error that asks for ``.copy()``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import TraceError
from .recorder import place
from .registry import hook
from .tracer import Tracer

Again = Callable[[Tracer], Tracer]
PutBack = Callable[[Tracer, Tracer], Tracer]


@dataclass(frozen=True, slots=True)
class Link:
    """From a view to its parent.  Without ``again`` and ``put_back`` it may as well be a copy."""

    parent: Tracer
    again: Again | None = None
    put_back: PutBack | None = None
    key: object = None
    """Which part of the parent the view shows, if that has a name."""


def view_of(
    parent: Tracer, made: Tracer, again: Again | None = None, put_back: PutBack | None = None, key: object = None
) -> Tracer:
    """``made``, as a view of ``parent``."""
    if parent.scalar:  # numbers have no memory to share
        return made
    view = made.alias()
    view.scalar = False
    view.link = Link(parent, again, put_back, key)
    view.root = parent.root
    view.seen = parent.root.version
    return view


def read_only(parent: Tracer, value: Tracer) -> Tracer:
    """What to put back for views that NumPy does not let one write to."""
    raise ValueError("assignment destination is read-only")


@hook("refresh")
def refresh(tracer: Tracer) -> int:
    """The value of a view after its memory was written to."""
    link: Link | None = tracer.link
    if link is None or link.again is None:
        raise place(
            TraceError(
                f"{tracer} was written to through an array that may share its memory",
                help="reshape and ravel give a view or a copy, as the memory is laid out, and a trace does not know;\n"
                "say .reshape(...).copy() if it is to be a copy, or write to the array that is read later",
            )
        )
    made = link.again(link.parent).value
    tracer.place(made, tracer.root.version)
    return made


@hook("write")
def write(target: Tracer, new: Tracer) -> None:
    """Make ``new`` the content of ``target`` and of what it is a view of."""
    if target.scalar:
        raise TypeError(f"'numpy.{target.dtype}' object does not support item assignment")
    _ = target.value  # all of the chain must be up to date before the version moves on
    changed = [(target, new.value)]
    node, content = target, new
    while node.link is not None and node.link.put_back is not None:
        content = node.link.put_back(node.link.parent, content)
        node = node.link.parent
        changed.append((node, content.value))
    target.root.version += 1
    for tracer, value in changed:
        tracer.place(value, target.root.version)
