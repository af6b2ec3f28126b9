"""Names that users give: of solvers and of recipes."""

from __future__ import annotations

from ..errors import SpecError, near_misses
from ..optimize import solver_names
from .recipes import RECIPES

SIMPLE = "simple"
"""The solver of four phases; all others are solvers of the numeric problem."""


def check_solver(solver: object) -> None:
    """Refuse a name that no solver has."""
    check_name(solver, "solver", (*solver_names(), SIMPLE))


def check_recipe(recipe: object) -> None:
    check_name(recipe, "recipe", tuple(RECIPES))


def check_name(name: object, what: str, known: tuple[str, ...]) -> None:
    """One of the names that there are."""
    if not isinstance(name, str) or name not in known:
        raise SpecError(
            f"no {what} is called {name!r}", rows=[("known", ", ".join(known))],
            help=near_misses(name, known) if isinstance(name, str) else f"give the name of a {what} as text",
        )  # fmt: skip


__all__ = ["SIMPLE", "check_recipe", "check_solver"]
