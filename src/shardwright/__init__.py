"""Shardwright: automatic sharding of tensor programs.

Describe devices as a mesh, ops by rules in named factors, and let shardings spread, be chosen, lowered, checked and
run.  Names are imported when they are first used: importing this imports no framework, and no solver of anybody's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import numpy as numpy
    from .api import Plan as Plan
    from .api import ShardedArray as ShardedArray
    from .api import asarray as asarray
    from .api import compare as compare
    from .api import load_plan as load_plan
    from .api import log as log
    from .api import ones as ones
    from .api import plan as plan
    from .api import randn as randn
    from .api import shard_map as shard_map
    from .api import verify as verify
    from .api import with_sharding_constraint as with_sharding_constraint
    from .api import zeros as zeros
    from .api.front import GraphExtractor as GraphExtractor
    from .api.front import needs_reshard as needs_reshard
    from .api.front import propagate as propagate
    from .api.front import propagate_sharding as propagate_sharding
    from .api.front import reshard as reshard
    from .errors import GraphError as GraphError
    from .errors import MeshError as MeshError
    from .errors import NotationError as NotationError
    from .errors import PlanInfeasible as PlanInfeasible
    from .errors import PropagationError as PropagationError
    from .errors import ReshardError as ReshardError
    from .errors import RuleError as RuleError
    from .errors import ShardwrightError as ShardwrightError
    from .errors import SpecError as SpecError
    from .errors import TraceError as TraceError
    from .errors import UnknownOpError as UnknownOpError
    from .errors import VerifyError as VerifyError
    from .frontends.numpy import ShapeDtype as ShapeDtype
    from .frontends.numpy import trace as trace
    from .ir import Graph as Graph
    from .ir import GraphBuilder as GraphBuilder
    from .ir import Program as Program
    from .plans.requests import cap_gather as cap_gather
    from .plans.requests import forbid as forbid
    from .plans.requests import pin as pin
    from .propagation.engine import run_hierarchical_propagation_pass as run_hierarchical_propagation_pass
    from .rules import rule as rule
    from .rules import sharding_rule as sharding_rule
    from .solve import SimpleSolver as SimpleSolver
    from .spec import DeviceMesh as DeviceMesh
    from .spec import DimSpec as DimSpec
    from .spec import FactorSharding as FactorSharding
    from .spec import OpShardingRule as OpShardingRule
    from .spec import P as P
    from .spec import ShardingSpec as ShardingSpec
    from .spec import compute_global_shape as compute_global_shape

__all__ = [
    "DeviceMesh",
    "Graph",
    "P",
    "Plan",
    "PlanInfeasible",
    "ShapeDtype",
    "ShardedArray",
    "ShardingSpec",
    "ShardwrightError",
    "asarray",
    "cap_gather",
    "compare",
    "forbid",
    "load_plan",
    "numpy",
    "pin",
    "plan",
    "randn",
    "reshard",
    "rule",
    "shard_map",
    "trace",
    "verify",
    "with_sharding_constraint",
]
"""The front row; the names of `_PLACES` that are not in it can be imported, too."""

_PLACES = {
    "api": ("Plan", "ShardedArray", "asarray", "compare", "load_plan", "log", "ones", "plan", "randn", "shard_map",
            "verify", "with_sharding_constraint", "zeros"),
    "api.front": ("GraphExtractor", "needs_reshard", "propagate", "propagate_sharding", "reshard"),
    "errors": ("GraphError", "MeshError", "NotationError", "PlanInfeasible", "PropagationError", "ReshardError",
               "RuleError", "ShardwrightError", "SpecError", "TraceError", "UnknownOpError", "VerifyError"),
    "frontends.numpy": ("ShapeDtype", "trace"),
    "ir": ("Graph", "GraphBuilder", "Program"),
    "plans.requests": ("cap_gather", "forbid", "pin"),
    "propagation.engine": ("run_hierarchical_propagation_pass",),
    "rules": ("rule", "sharding_rule"),
    "solve": ("SimpleSolver",),
    "spec": ("DeviceMesh", "DimSpec", "FactorSharding", "OpShardingRule", "P", "ShardingSpec",
             "compute_global_shape"),
}  # fmt: skip
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "numpy":
        return import_module(f"{__name__}.numpy")
    place = _PLACE_OF.get(name)
    if place is None:
        from .errors import near_misses

        said = f"module {__name__!r} has no attribute {name!r}"
        meant = None if name.startswith("_") else near_misses(name, {*_PLACE_OF, *__all__})
        raise AttributeError(said if meant is None else f"{said}; {meant}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{place}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACE_OF, *__all__})
