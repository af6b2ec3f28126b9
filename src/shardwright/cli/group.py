"""The command line: the group of all verbs, and of these ``discover`` and ``audit``.

Nothing is computed here: each command reads its options, calls one function of a room, and prints.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import __version__
from ..errors import SpecError
from . import checking, looking, planning
from .exits import NO, Verbs
from .fuzzing import fuzz
from .output import for_file, for_folder, write_file

if TYPE_CHECKING:
    from ..discover.emit.files import Form
    from ..discover.statement import Statement


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardwright")
def main() -> None:
    """Automatic sharding of tensor programs: plan, prove and run them on a mesh of devices.

    Every command ends with 0 if all is well, 1 if the answer is no, 2 if it was used wrongly, 3 for a fault of
    shardwright, 130 if interrupted.  --debug shows where an error came from.
    """


for _command in (*planning.COMMANDS, *checking.COMMANDS, *looking.COMMANDS, fuzz):
    main.add_command(_command)


@main.command()
@click.argument("operators", nargs=-1, metavar="[OPERATOR]...")
@click.option("--yaml", "form", flag_value="yaml", help="Print the YAML report.")
@click.option("--json", "form", flag_value="json", help="Print the same as JSON.")
@click.option("--emit", type=click.Path(path_type=Path), metavar="DIR", callback=for_folder,
              help="Write DTensor code and its tests to DIR.")  # fmt: skip
@click.option("--style", type=click.Choice(["file", "public", "upstream"]), default="file", show_default=True,
              help="With --emit: a file that registers single-dim strategies; one by the public register_sharding; or "
              "a contribution to PyTorch: the functions, typed, for all overloads, a test, the words.")  # fmt: skip
@click.option("--spawned", is_flag=True, help="With --emit: tests that start one process a rank (DTensorTestBase).")
@click.option("--call", "calls", multiple=True, metavar="CALL",
              help="A call to start from: \"op(f32[8, 6], f32[6], dim=1)\"; may be given several times.")  # fmt: skip
@click.option("--import", "modules", multiple=True, metavar="MODULE", help="Import it first: it registers operators.")
@click.option("--backward", is_flag=True, help="The rule of the gradient.")
@click.option("--quick", is_flag=True, help="Fewer calls and inputs, as --all does.")
@click.option("--all", "everything", is_flag=True, help="Every operator of PyTorch's OpInfo database.")
@click.option("--book", type=click.Choice(["numpy", "torch"]), help="Check this rule book against what is found.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With --all or --book torch: processes at a time.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="PATH",
              help="Write what is printed to PATH; with --all: the folder of the reports; with --book torch: the page "
                   "beside DTensor's.")  # fmt: skip
@click.pass_context
def discover(
    ctx: click.Context,
    operators: tuple[str, ...],
    form: str | None,
    emit: Path | None,
    style: Form,
    spawned: bool,
    calls: tuple[str, ...],
    modules: tuple[str, ...],
    backward: bool,
    quick: bool,
    everything: bool,
    book: str | None,
    jobs: int,
    out: Path | None,
) -> None:
    """Learn an operator's sharding rule by running it: shardwright discover torch.cross

    OPERATOR is a function (torch.cross, torch.nn.functional.relu), an ATen overload (aten.add.Tensor) or an operator of
    your own (torch.ops.mylib.myop, mymod.op, mymod.py:op).  Exits with 1 if nothing could be judged.
    """
    look = for_folder if everything else for_file
    look(ctx, next(option for option in ctx.command.params if option.name == "out"), out)
    if book == "torch":
        _check_torch_book(operators, jobs, out)
    elif book is not None:
        _check_book(operators)
    elif everything:
        _discover_all(jobs, out, quick=True)
    elif not operators:
        raise click.UsageError("name an operator, or say --all")
    else:
        _discover_some(operators, form, emit, spawned, style, quick, calls, modules, backward, out)


def _discover_some(
    operators: tuple[str, ...],
    form: str | None,
    emit: Path | None,
    spawned: bool,
    style: Form,
    quick: bool,
    calls: tuple[str, ...],
    modules: tuple[str, ...],
    backward: bool,
    out: Path | None,
) -> None:
    import json

    from ..discover import QUICK, THOROUGH
    from ..discover import discover as find
    from ..discover.emit.files import write_files
    from ..discover.report import as_dict, as_json, as_text, as_yaml

    if calls and len(operators) > 1:
        raise click.UsageError("--call is for one operator")
    _import(modules)
    statements = [s for operator in operators for s in find(operator, QUICK if quick else THOROUGH, calls, backward)]
    if form == "json":
        text = as_json(statements[0]) if len(statements) == 1 else json.dumps([*map(as_dict, statements)], indent=2)
    elif form == "yaml":
        text = "---\n".join(map(as_yaml, statements)).rstrip("\n")
    else:
        text = "\n\n".join(map(as_text, statements))
    click.echo(text)
    if out is not None:
        write_file(out, text + "\n")
    if emit is not None:
        for statement in statements:
            if not statement.operator.overload:
                click.echo(f"no code for {statement.operator.name}: {_of_its_parts(statement)}", err=True)
        written = [s for s in statements if s.operator.overload and not s.refused]
        for path in write_files(written, emit, "spawned" if spawned else "local", _defining(operators, modules), style):
            click.echo(f"wrote {path}", err=True)
    if all(statement.refused for statement in statements):
        sys.exit(1)


def _of_its_parts(statement: Statement) -> str:
    """Why a composite gets no code of its own, and what to emit instead."""
    lacking = [made.overload for made in statement.makes if made.dtensor == "has no rule"]
    if not lacking:
        return "it makes several ATen calls, and DTensor has a rule for each, or takes it apart"
    return f"it makes several ATen calls; emit what DTensor has no rule for: {', '.join(lacking)}"


def _import(modules: tuple[str, ...]) -> None:
    """Import these modules, which register operators."""
    import importlib

    sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise SpecError(f"module {module!r} cannot be imported: {error}", help="run where it is found") from None


def _defining(operators: tuple[str, ...], modules: tuple[str, ...]) -> tuple[str, ...]:
    """The modules that emitted files have to import: those given, those of files, those that hold a named operator."""
    found = dict.fromkeys(modules)
    for operator in operators:
        place, colon, _ = operator.rpartition(":")
        prefix = Path(place).stem if colon and place.endswith(".py") else operator
        while prefix and prefix not in sys.modules:
            prefix = prefix.rpartition(".")[0]
        if prefix.partition(".")[0] not in ("", "torch"):
            found[prefix] = None
    return tuple(found)


def _discover_all(jobs: int, out: Path | None, quick: bool) -> None:
    from ..discover.everything import Verdict, discover_all, summary_text
    from ..discover.torch.samples import opinfo_names

    shown = sys.stderr.isatty()

    def progress(verdict: Verdict, done: int, of: int) -> None:
        text = f"[{done}/{of}] {verdict.name}: {verdict.status}"
        if shown:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
        elif done % 25 == 0 or done == of:
            click.echo(text, err=True)

    verdicts = discover_all(opinfo_names(), out, jobs=jobs, progress=progress)
    if shown:
        click.echo(err=True)
    click.echo(summary_text(verdicts))
    if out is not None:
        click.echo(f"reports in {out}")


def _check_book(ops: tuple[str, ...]) -> None:
    from ..discover.book.numpy import check_book, text_of

    comparisons = check_book(ops or None)
    click.echo(text_of(comparisons))
    if any(comparison.unexplained for comparison in comparisons):
        sys.exit(1)


def _check_torch_book(ops: tuple[str, ...], jobs: int, out: Path | None) -> None:
    from ..discover.book.compare import Comparison, text_of
    from ..discover.book.page import page
    from ..discover.book.torch import check_book

    def progress(comparison: Comparison, done: int, of: int) -> None:
        if done % 25 == 0 or done == of:
            click.echo(f"[{done}/{of}] {comparison.op}", err=True)

    comparisons = check_book(ops or None, jobs, progress)
    click.echo(text_of(comparisons))
    if out is not None:
        write_file(out, page(comparisons))
    if any(comparison.unexplained for comparison in comparisons):
        sys.exit(1)


def _beside_new_folders(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A file whose folders are made where they are not there."""
    if path is None or path.is_dir() or path.parent.is_dir():
        return for_file(ctx, option, path)
    for_folder(ctx, option, path.parent)
    return path


@main.command()
@click.argument("what", type=click.Choice(["dtensor"]))
@click.option("--op", "operators", multiple=True, metavar="OPERATOR", help="Only these; may be given several times.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes at a time.")
@click.option("--wrong-only", is_flag=True, help="Do not look for missing rules, which takes most of the time.")
@click.option("--json", "as_json", is_flag=True, help="Print all entries as JSON.")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE", callback=_beside_new_folders,
              help="Write the findings as Markdown to FILE.")  # fmt: skip
@click.option("--scripts", type=click.Path(path_type=Path), metavar="DIR", callback=for_folder,
              help="Write each fault's script to DIR.")  # fmt: skip
@click.option("--emit", type=click.Path(path_type=Path), metavar="DIR", callback=for_folder,
              help="Write code for missing rules to DIR.")  # fmt: skip
def audit(
    what: str,
    operators: tuple[str, ...],
    jobs: int,
    wrong_only: bool,
    as_json: bool,
    out: Path | None,
    scripts: Path | None,
    emit: Path | None,
) -> None:
    """Which of DTensor's own sharding rules are wrong or missing: shardwright audit dtensor

    Every rule is checked by execution, and run end to end through DTensor's dispatcher.  With --op it is a check for
    CI: it exits with 1 if a rule of these operators is wrong, or nothing of them could be judged.
    """
    import json

    from ..discover.audit.emit import emit_missing
    from ..discover.audit.operators import audit_all
    from ..discover.audit.report import render_markdown
    from ..discover.audit.scripts import script_name

    shown = sys.stderr.isatty()

    def progress(done: int, of: int, overload: str) -> None:
        if shown:
            click.echo(f"\r\x1b[K[{done}/{of}] {overload}", err=True, nl=False)
        elif done % 50 == 0 or done == of:
            click.echo(f"[{done}/{of}] {overload}", err=True)

    found = audit_all(list(operators) or None, jobs=jobs, progress=progress, missing=not wrong_only)
    if shown:
        click.echo(err=True)
    click.echo(json.dumps(found.as_dict(), indent=2) if as_json else render_markdown(found, scripts=False))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = "" if scripts is None else os.path.relpath(scripts, out.parent)
        out.write_text(render_markdown(found, folder=folder))
    if scripts is not None:
        scripts.mkdir(parents=True, exist_ok=True)
        for cause in found.causes():
            (scripts / script_name(cause.shown.overload, cause.shown.rule)).write_text(cause.shown.script)
    if emit is not None:
        for overload, reason in emit_missing(found, emit, jobs, progress).items():
            click.echo(f"no code for {overload}: {reason}", err=True)
    if operators and (found.of("wrong") or not (found.of("correct") or found.of("refuses"))):
        sys.exit(NO)


if __name__ == "__main__":
    main()
