"""One word for one thing, and the field's own: what readers meet says none of the words that were given up.

Readers meet pages, help texts, errors and docstrings; `docs/glossary.md` has the words that are used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from shardwright.cli.group import main

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
GIVEN_UP = {
    r"\bl(?:ies?|ying)\b": "is sharded so",
    r"\bways? to (?:split|cut|shard) (?:an |one |every |the )?ops?\b|\*\*Ways": "strategy",
    r"\bhubs?\b": "shared copy",
    r"\bprices? of (?:a byte|bytes)\b": "multiplier",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\bmoment\b|\bmoments (?:at|of|that|when|which)\b": "step",
    r"\blots?\b": "batch",
    r"\bflat plans?\b": "one-copy plan",
    r"\bseams?\b": "boundary",
}
"""What is not said, and what is said instead."""


def words_in(text: str) -> list[str]:
    return [
        f"{found.group()!r}, say {said!r}"
        for pattern, said in GIVEN_UP.items()
        for found in re.finditer(pattern, text, re.IGNORECASE)
    ]


def commands(group: click.Group, name: str = "shardwright") -> Iterator[tuple[str, click.Command]]:
    yield name, group
    for word, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def said_in_errors(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a file that are part of a ``raise``, or of an error that is made there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        raised = isinstance(node, ast.Raise)
        made = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "Infeasible"))
        if raised or made:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [f"line {n}: {word}" for n, line in enumerate(lines, 1) for word in words_in(line)] == []


def test_help() -> None:
    found = [
        f"{name}: {word}"
        for name, command in commands(main)
        for word in words_in(command.get_help(click.Context(command)))
    ]
    assert found == []


def test_errors() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in said_in_errors(path)
        for word in words_in(text)
    ]
    assert sorted(set(found)) == []


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Strings that are statements: docstrings of modules, classes and functions, and those below a name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.splitlines(), node.lineno)


ELSEWHERE = {"frontends", "run", "rules", "proof", "discover", "fuzz", "optimize", "ir"}
"""Rooms where bytes lie in memory and numbers below others; they give up the other words."""


@pytest.mark.parametrize("room", sorted(path.name for path in (ROOT / "src" / "shardwright").iterdir()))
def test_docstrings(room: str) -> None:
    found = []
    top = ROOT / "src" / "shardwright" / room
    for path in sorted(top.rglob("*.py")) if top.is_dir() else [top] * (top.suffix == ".py"):
        for line, text in docstrings(path):
            words = [word for word in words_in(text) if room not in ELSEWHERE or "'is sharded so'" not in word]
            found += [f"{path.relative_to(ROOT)}:{line}: {word}" for word in words]
    assert found == []


def test_these_would_be_found(tmp_path: Path) -> None:
    assert words_in("There are many ways to split an op, at the moment when it lies so.") != []
    (tmp_path / "a.py").write_text('raise SpecError(f"the tensor {x} lies so", help="a hub")\n', encoding="utf-8")
    assert [words_in(text) for _, text in said_in_errors(tmp_path / "a.py") if words_in(text)] != []
