"""A plan as one HTML file: it needs no network, and what it may run is fixed by its content security policy."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from ..errors import SpecError
from .overview import Overview
from .page_data import Row, as_script, page_data


def page_text(view: Overview, plan_json: str, comparison: Sequence[Row] = ()) -> str:
    """The whole file; names are escaped by the template, and written as text by the script."""
    import jinja2

    folder = files(__package__).joinpath("page")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        title=f"{view.plan.name} on {view.plan.mesh}",
        style=style, script=script, style_hash=_hash(style), script_hash=_hash(script),
        data=as_script(page_data(view, plan_json, comparison)),
    )  # fmt: skip


def write_page(path: str | os.PathLike[str], view: Overview, plan_json: str, comparison: Sequence[Row] = ()) -> Path:
    """Write the file and return where it is."""
    if not isinstance(path, str | os.PathLike):
        raise SpecError(f"a page is written to a file, not to {path!r}", help='name it: plan.html("plan.html")')
    where = Path(path)
    text = page_text(view, plan_json, comparison)
    try:
        where.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{str(where)!r} cannot be written: {error.strerror}", help="name another file") from None
    return where


def _hash(text: str) -> str:
    """As a content security policy names a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
