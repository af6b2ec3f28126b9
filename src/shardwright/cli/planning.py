"""The verbs of planning: ``plan``, ``compare``, ``explain``.  All but ``plan`` read a saved plan, too."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import SpecError
from .output import JSON, OUT, for_file, show, tell, working, write_file
from .programs import Planning, _with, saved_and_program, says, with_planning

_SAVED = click.argument("words", nargs=-1, required=True, metavar="[PLAN.json] PROGRAM")


@says('plan train.py:program --mesh "dp=2, tp=4"')
@click.command()
@click.argument("program", metavar="PROGRAM")
@with_planning
@OUT
@JSON
@click.option("--html", type=click.Path(path_type=Path), callback=for_file, help="Write a report for a browser.")
@click.option("--all", "everything", is_flag=True, help="Every module, collective and input.")
@click.option("--trace", is_flag=True, help="The program in order of time, with what each line costs.")
def plan(
    program: str, about: Planning, out: Path | None, json_form: bool, html: Path | None, everything: bool, trace: bool
) -> None:
    """Find the fastest plan for a program on a mesh.  -o writes the plan, which other verbs read."""
    made = about.plan(program)
    if json_form:
        tell("", made.overview.to_json(), True, None)
    else:
        show(made.text(all=everything))
        if trace:
            show(made.trace())
    if html is not None:
        with working("writing the report ..."):
            made.html(html)
        click.echo(f"written to {html}", err=True)
    if out is not None:
        write_file(out, made.to_json())
        click.echo(f"written to {out}", err=True)


@says('compare train.py:program --mesh "dp=2, tp=4"')
@click.command()
@_SAVED
@with_planning
@OUT
@JSON
def compare(words: tuple[str, ...], about: Planning, out: Path | None, json_form: bool) -> None:
    """The planner's plan, or a saved one, beside named baselines."""
    if json_form:
        made, _ = about.plan_or_load(words)
        from ..api.beside import comparison_rows

        with working("planning recipes ..."):
            tell("", comparison_rows(made.planner, made.overview), True, out)
        return
    from ..api import compare as make_table

    saved, where = saved_and_program(words)
    if saved is not None:
        made = about.load(saved, where)
        fn, args, keywords = about.program(where)
        options = {"mesh": made.data.mesh, "plans": {Path(saved).name: made}, "hardware": made.hardware}
        said = {key: value for key, value in keywords.items() if key not in options}
    else:
        fn, args, said = about.program(where)
        options = about.options
        if "mesh" not in {**said, **options}:
            raise SpecError("--mesh is not given", help='write --mesh "dp=2, tp=4", or name a saved plan first')
    with working("planning recipes ..."):
        text = make_table(fn, *args, **_with(said, **options))
    tell(text, None, False, out)


@says('explain train.py:program w1 --mesh "dp=2, tp=4"')
@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[PLAN.json] PROGRAM NAME")
@with_planning
@OUT
@JSON
def explain(words: tuple[str, ...], about: Planning, out: Path | None, json_form: bool) -> None:
    """Why a value is sharded as it is: what other shardings of it would cost, and what makes them cost more."""
    if len(words) < 2:
        raise SpecError("explain needs a program and the name of a value", help="write FILE.py:NAME VALUE")
    made, where = about.plan_or_load(words[:-1])
    with working(f"weighing other shardings of {words[-1]} ..."):
        text = made.explain(words[-1])
    tell(text, {"program": where, "value": words[-1], "text": text}, json_form, out)


COMMANDS = (plan, compare, explain)
