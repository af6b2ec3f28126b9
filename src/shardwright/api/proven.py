"""Every Program is proven before it first runs: who asks for it, and how ranks hear of it.  `verify` asks at any time.

A Program is proven when it is first compiled for a user, against the graph as captured; ``verify="off"`` leaves it out,
and plans say so wherever they are printed.  Of several processes rank 0 proves, and the others hear its verdict.
"""

from __future__ import annotations

import json
from typing import Any

from ..discover.on_demand.rule_trial import trusted_rules
from ..errors import RankError, SpecError, front
from ..frontends.base import Source
from ..ir.digest import program_digest, program_hash
from ..ir.graph import Graph
from ..ir.program import Program
from ..proof import Certificate, prove
from ..run.engine import Engine, share_between_processes

VERIFY = ("on", "off")


def check_verify(verify: object) -> None:
    if verify not in VERIFY:
        raise SpecError(f"verify= is 'on' or 'off', not {verify!r}")


def proven_here(graph: Graph, program: Program, source: Graph) -> Certificate:
    """The certificate of a Program, found by this process; rules that did not come with the project are tried first."""
    outside = {item.op: str(item) for item in trusted_rules(source)}
    return prove(graph, program, source, outside)


def proven_for(
    engine: Engine, graph: Graph, program: Program, source: Source, captured: Graph | None = None
) -> Certificate:
    """The certificate of a Program that is about to be compiled for an engine.

    ``captured`` is what it is proven against, if that is not all of the source: a piece of it.
    """
    against = source.graph if captured is None else captured
    if engine.name == "virtual":  # in this process alone
        return proven_here(graph, program, against)
    mine: list[Certificate] = []

    def text() -> str:
        mine.append(proven_here(graph, program, against))
        return json.dumps(mine[0].to_json())

    shared = share_between_processes(text, program.mesh, source.framework.processes, "proving")
    if shared is None:
        return proven_here(graph, program, against)
    if mine:
        return mine[0]
    found = Certificate.from_json(json.loads(shared))
    if (found.graph, found.program) != (program_hash(against), program_digest(program)):
        raise RankError(
            "rank 0 has proven another program than the one of this rank",
            rows=[("rank 0", found.program[:12]), ("here", program_digest(program)[:12])],
            help="every rank has to run the same model with the same plan",
        )
    return found


@front
def verify(what: Any, /, *args: Any, **kwargs: Any) -> Certificate:
    """Prove a plan, a training step, or what `shard_map` returned (then with the arguments of a call).

    >>> import numpy as np
    >>> from shardwright import P, shard_map
    >>> f = shard_map(lambda x, w: x @ w, "tp=2", in_specs=(P(None, "tp"), P("tp", None)))
    >>> verify(f, np.ones((4, 8)), np.ones((8, 2))).lemmas
    2
    """
    found = what.plan(*args, **kwargs) if callable(getattr(what, "plan", None)) else getattr(what, "plan", what)
    prove_it = getattr(found, "verify", None)
    if not callable(prove_it):
        raise SpecError(
            f"a {type(what).__name__} is nothing that can be proven",
            help="give a plan, a step, or a shard_mapped function with the arguments of a call",
        )
    certificate: Certificate = prove_it()
    return certificate
