"""``shardwright prove``: whether a parallel program that somebody wrote is equal to the single one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..errors import ShardwrightError, SpecError
from .planning import call_target, for_file, write_file

NOT_PROVEN, USAGE, INTERNAL = 1, 2, 3
"""Exit codes beside 0."""
RETURNS = "a dict of the arguments of shardwright.torch.prove: parallel, like, mesh, inputs, ..."


@click.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--mesh", help='Another mesh than the target says, such as "dp=2, tp=2".')
@click.option(
    "--json", "out", type=click.Path(path_type=Path), callback=for_file, help="Write the answer to this file."
)
@click.pass_context
def prove(ctx: click.Context, target: str, mesh: str | None, out: Path | None) -> None:
    """Prove that parallel code (DTensor, FSDP2, DDP, your own) computes what the plain model does.

    \b
    NAME is a function without parameters that returns the arguments of shardwright.torch.prove:
        def case():
            return dict(parallel=parallel, like=Model(), mesh="tp=2", inputs=(x,))
    Exit: 0 proven, 1 not proven (not equal, or it cannot be followed), 2 wrong use, 3 a fault of ours.
    """
    try:
        arguments = _arguments(target)
    except ShardwrightError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        ctx.exit(USAGE)
    except Exception as error:
        click.echo(f"{target} fails: {type(error).__name__}: {error}", err=True)
        ctx.exit(USAGE)
    if mesh is not None:
        arguments["mesh"] = mesh
    from ..torch.proving import prove as make

    try:
        proof = make(arguments.pop("parallel"), **arguments)
    except ShardwrightError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        ctx.exit(USAGE)
    except Exception as error:
        click.echo(f"this is a fault of shardwright: {type(error).__name__}: {error}", err=True)
        ctx.exit(INTERNAL)
    click.echo(str(proof))
    if proof.certificate is not None:
        for item in proof.certificate.trusted:
            click.echo(f"  on trust: {item}")
    if out is not None:
        write_file(out, json.dumps(proof.to_json(), indent=1) + "\n")
    ctx.exit(0 if proof else NOT_PROVEN)


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
