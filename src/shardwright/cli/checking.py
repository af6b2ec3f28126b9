"""The verbs that hold a plan against its program: ``verify`` proves it, ``run`` runs both on drawn inputs."""

from __future__ import annotations

from pathlib import Path

import click

from .exits import NO
from .output import JSON, OUT, tell, working
from .programs import Planning, says, with_planning
from .trials import tried

_SAVED = click.argument("words", nargs=-1, required=True, metavar="[PLAN.json] PROGRAM")


@says("verify plan.json train.py:program")
@click.command()
@_SAVED
@with_planning
@OUT
@JSON
def verify(words: tuple[str, ...], about: Planning, out: Path | None, json_form: bool) -> None:
    """Prove that a plan's program computes what the function does.  Of a saved plan no planner is asked."""
    made, _ = about.plan_or_load(words)
    with working("proving ..."):
        certificate = made.verify()
    text = f"{made.data.name} on ({made.data.mesh}): {certificate}"
    trust = "".join(f"\n  on trust: {item}" for item in certificate.trusted)
    tell(text + trust, certificate.to_json(), json_form, out)


@says("run plan.json train.py:program")
@click.command()
@_SAVED
@with_planning
@click.option("--seed", default=0, show_default=True, help="Of the inputs that are drawn.")
@OUT
@JSON
@click.pass_context
def run(
    ctx: click.Context, words: tuple[str, ...], about: Planning, seed: int, out: Path | None, json_form: bool
) -> None:
    """Run a plan on drawn inputs, and compare it with the program on one device.

    On as many devices as the mesh has, all in this process; started by torchrun, on its processes.
    """
    made, _ = about.plan_or_load(words)
    with working("running ..."):
        trial = tried(made, seed)
    if trial.speaks:
        tell(str(trial), trial.to_json(), json_form, out)
    ctx.exit(0 if trial.equal else NO)


COMMANDS = (verify, run)
