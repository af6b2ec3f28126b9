"""``shardwright prove``: whether a parallel program that somebody wrote is equal to the single one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import SpecError
from .exits import NO
from .output import JSON, OUT, tell, working
from .programs import call_target

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
