"""Which solvers there are: the modules of this folder that have a ``NAME``, and those of others by entry point.

A folder that is appended to the package's ``__path__`` is listed as well.
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Protocol

from ...errors import near_misses
from ..problem import NumericError, NumericProblem
from .state import Accepts, Search

ENTRY_POINTS = "shardwright.solvers"
"""Each names a module like those of this folder."""
_log = logging.getLogger(__name__)


class Solver(Protocol):
    """A module that solves numeric problems."""

    NAME: str
    ACCEPTS: Accepts

    def solve(self, problem: NumericProblem, search: Search) -> bool:
        """Offer choices for ``problem`` to ``search``; returns whether it came to its end before the clock did."""


_listed: dict[str, Solver] = {}


def solver_names() -> tuple[str, ...]:
    """The solvers that there are now."""
    package = import_module(__package__ or "shardwright.optimize.solvers")
    modules = [import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__)]
    for point in entry_points(group=ENTRY_POINTS):
        try:
            modules.append(point.load())
        except Exception as error:  # a broken plug-in must not take the others with it
            _log.warning("the solver %s could not be loaded: %s", point.value, error)
    _listed.clear()
    for module in modules:
        if hasattr(module, "NAME"):
            _listed.setdefault(module.NAME, module)  # ours come first: nobody takes their names
    return tuple(sorted(_listed))


def solver_named(name: str) -> Solver:
    """A solver whose library is installed; an unknown name is an error that names near misses."""
    if name not in _listed and name not in solver_names():
        names = solver_names()
        raise NumericError(
            f"no solver is called {name!r}", rows=[("known", ", ".join(names))], help=near_misses(name, names)
        )
    solver = _listed[name]
    library = solver.ACCEPTS.library
    if library is not None and find_spec(library) is None:
        raise NumericError(f"solver {name!r} needs {library}, which is not installed", help=f"pip install {library}")
    return solver
