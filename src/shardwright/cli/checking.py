"""The verbs that hold a plan against its program: ``verify`` proves it, ``run`` runs both on drawn inputs; ``prove``
holds a parallel program that somebody wrote against the single one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import SpecError
from .exits import NO
from .output import JSON, OUT, tell, working
from .programs import Planning, call_target, says, with_planning
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


RETURNS = "a dict of the arguments of shardwright.torch.prove: parallel, like, mesh, inputs, ..."


@click.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--mesh", help='Another mesh than the target says, such as "dp=2, tp=2".')
@OUT
@JSON
@click.pass_context
def prove(ctx: click.Context, target: str, mesh: str | None, out: Path | None, json_form: bool) -> None:
    """Prove that parallel code (DTensor, FSDP2, DDP, your own) computes what the plain model does.

    \b
    NAME is a function without parameters that returns the arguments of shardwright.torch.prove:
        def case():
            return dict(parallel=parallel, like=Model(), mesh="tp=2", inputs=(x,))
    Exit: 0 proven, 1 not proven (not equal, or it cannot be followed), 2 wrong use, 3 a fault of ours.
    """
    arguments = _arguments(target)
    if mesh is not None:
        arguments["mesh"] = mesh
    from ..torch.proving import prove as make

    with working("proving ..."):
        proof = make(arguments.pop("parallel"), **arguments)
    trust = () if proof.certificate is None else proof.certificate.trusted
    tell(str(proof) + "".join(f"\n  on trust: {item}" for item in trust), proof.to_json(), json_form, out)
    ctx.exit(0 if proof else NO)


def _arguments(target: str) -> dict[str, Any]:
    made = call_target(target, RETURNS)
    if not isinstance(made, dict) or not all(isinstance(key, str) for key in made):
        raise SpecError(f"{target} must return {RETURNS}, not a {type(made).__name__}")
    missing = [key for key in ("parallel", "like", "mesh", "inputs") if key not in made]
    unknown = sorted(made.keys() - {"parallel", "like", "mesh", "inputs", "placements", "loss"})
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}"
        raise SpecError(f"what {target} returns {what}", help=f"return {RETURNS}")
    return dict(made)


COMMANDS = (verify, run, prove)
