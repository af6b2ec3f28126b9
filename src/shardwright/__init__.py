"""Shardwright: automatic sharding of tensor programs.

Describe devices as a mesh, ops by rules in named factors, and let shardings spread, be chosen, lowered, checked and
run.  Importing this imports no framework beyond NumPy, and no solver of anybody else's.
"""

from . import numpy
from .api import (
    Planned,
    ShardedArray,
    asarray,
    cap_gather,
    compare,
    forbid,
    load_plan,
    log,
    ones,
    pin,
    randn,
    shard_map,
    with_sharding_constraint,
    zeros,
)
from .errors import (
    GraphError,
    MeshError,
    NotationError,
    PlanInfeasible,
    PropagationError,
    ReshardError,
    RuleError,
    ShardwrightError,
    SpecError,
    TraceError,
    UnknownOpError,
    VerifyError,
)
from .frontends.numpy import ShapeDtype, trace
from .ir import Graph, GraphBuilder, Program
from .propagation.engine import propagate_sharding, run_hierarchical_propagation_pass
from .rules import GraphExtractor, rule, sharding_rule
from .solve import SimpleSolver
from .spec import (
    DeviceMesh,
    DimSpec,
    FactorSharding,
    OpShardingRule,
    P,
    ShardingSpec,
    compute_global_shape,
    needs_reshard,
    reshard,
)

# Last, since importing the room of that name would bind the name to it.
from .api.compile import propagate  # isort: skip
from .api.plan import plan  # isort: skip

__version__ = "0.1.0"

__all__ = [
    "DeviceMesh",
    "DimSpec",
    "FactorSharding",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "GraphExtractor",
    "MeshError",
    "NotationError",
    "OpShardingRule",
    "P",
    "PlanInfeasible",
    "Planned",
    "Program",
    "PropagationError",
    "ReshardError",
    "RuleError",
    "ShapeDtype",
    "ShardedArray",
    "ShardingSpec",
    "ShardwrightError",
    "SimpleSolver",
    "SpecError",
    "TraceError",
    "UnknownOpError",
    "VerifyError",
    "asarray",
    "cap_gather",
    "compare",
    "compute_global_shape",
    "forbid",
    "load_plan",
    "log",
    "needs_reshard",
    "numpy",
    "ones",
    "pin",
    "plan",
    "propagate",
    "propagate_sharding",
    "randn",
    "reshard",
    "rule",
    "run_hierarchical_propagation_pass",
    "shard_map",
    "sharding_rule",
    "trace",
    "with_sharding_constraint",
    "zeros",
]
