"""Shardwright: automatic sharding of tensor programs.

Describe devices as a mesh, ops by rules in named factors, and let shardings spread, be chosen, lowered, proven
and run.  Importing this imports no framework and no solver.
"""

from .errors import (
    GraphError,
    MeshError,
    NotationError,
    PropagationError,
    ReshardError,
    RuleError,
    ShardwrightError,
    SpecError,
    UnknownOpError,
)
from .ir import Graph, GraphBuilder, Program
from .propagate import propagate_sharding, run_hierarchical_propagation_pass
from .rules import GraphExtractor, rule, sharding_rule
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
    "Program",
    "PropagationError",
    "ReshardError",
    "RuleError",
    "ShardingSpec",
    "ShardwrightError",
    "SpecError",
    "UnknownOpError",
    "compute_global_shape",
    "needs_reshard",
    "propagate_sharding",
    "reshard",
    "rule",
    "run_hierarchical_propagation_pass",
    "sharding_rule",
]
