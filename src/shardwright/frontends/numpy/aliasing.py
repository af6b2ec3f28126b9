"""Values that share memory.

A graph changes nothing in place, a NumPy program does: ``row = x[0]; row += 1`` changes ``x``.  So a traced array
that NumPy would have made as a view remembers its parent, how to look at it *again*, and how to *put back* what was
written through the view.  A write updates the chain up to the array that owns the memory; the other views of that
memory are then out of date, and look again when they are next read (`tracer.write`, `tracer.refresh`).

Whether ``reshape`` makes a view or a copy depends on strides, which a trace does not know.  Such a result is used
freely, but reading one side after writing to the other is an error that asks for ``.copy()``.
"""

from __future__ import annotations

from .tracer import Again, Link, PutBack, Tracer


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
