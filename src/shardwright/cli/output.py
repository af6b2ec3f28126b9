"""What commands print and write: text with colour on a terminal only, JSON, files that are looked at beforehand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ..errors import SpecError


def for_file(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A path that a file can be written to, looked at before any work is done."""
    if path is None:
        return None
    name = option.opts[-1]
    if path.is_dir():
        raise SpecError(f"{name} {str(path)!r} is a folder", help="name a file in it")
    if not path.parent.is_dir():
        raise SpecError(
            f"{name} {str(path)!r}: there is no folder {str(path.parent)!r}", help="make it, or name another"
        )
    there = path.exists()
    if there and not path.is_file():
        return path  # a pipe or a device: to open it would hang, or be taken for all that is written
    try:
        path.open("ab").close()  # permissions alone do not say it: of /proc, or a disk that is full
        if not there:
            path.unlink()
    except OSError as error:
        said = "no permission" if isinstance(error, PermissionError) else error.strerror
        raise SpecError(f"{name} {str(path)!r} cannot be written: {said}", help="name another file") from None
    return path


def for_folder(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A path at which a folder is or can be made."""
    for part in () if path is None else (path, *path.parents):
        if part.exists() and not part.is_dir():
            raise SpecError(f"{option.opts[-1]} {str(path)!r}: {str(part)!r} is no folder", help="name another")
    if path is not None and not os.access(next(p for p in (path, *path.parents) if p.is_dir()), os.W_OK):
        raise SpecError(f"{option.opts[-1]} {str(path)!r} cannot be written: no permission", help="name another folder")
    return path


def write_file(path: Path, text: str) -> None:
    """Write, or say why that cannot be."""
    try:
        path.write_text(text)
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be written: {error.strerror}", help="name another file") from None


def as_json(record: Any) -> str:
    return json.dumps(record, indent=1, allow_nan=False)


def show(text: str) -> None:
    """Print; on a terminal with colour, unless NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        click.echo(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    head, _, rest = text.partition("\n")
    shown = Text(rest)
    shown.highlight_regex(r"[0-9.]+ (?:s|ms|us|ns) exposed\b", "red")
    shown.highlight_regex(r"DOES NOT FIT|not yet proven|not proven", "bold red")
    shown.highlight_regex(r"(?m)^(?:module  .*|communication, .*|memory at the peak.*|note:|inputs)$", "bold")
    shown.highlight_regex(r"(?m)^  (?:step|memory|plan|best|proof)\b", "cyan")
    shown.highlight_regex(r"@[\w+:()]+", "green")
    console.print(Text(head, style="bold"))
    if rest:
        console.print(shown)


@contextmanager
def working(what: str) -> Iterator[None]:
    """While something takes long: said on the terminal, and gone when it is done."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


OUT = click.option(
    "-o", "--out", type=click.Path(path_type=Path), callback=for_file, metavar="FILE", help="Write it to FILE."
)
JSON = click.option("--json", "json_form", is_flag=True, help="Print JSON.")


def tell(text: str, record: Any, json_form: bool, out: Path | None) -> None:
    """Print the text, or the record; what is printed goes to the file, too."""
    said = as_json(record) if json_form else text
    if json_form:
        click.echo(said)
    else:
        show(said)
    if out is not None:
        write_file(out, said + "\n")
        click.echo(f"written to {out}", err=True)
