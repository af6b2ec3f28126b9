"""The nouns: meshes, shardings, rules, and how a tensor gets from one sharding to another.

Pure Python, no framework.  One notation for everything, one parser (`notation`).

| file | what it holds |
|---|---|
| `axes` | `AxisRef`: a mesh axis or a part of one, and the algebra of parts |
| `mesh` | `DeviceMesh`: named axes, device order, groups |
| `chunks` | how a dim is cut, uneven and empty shards included |
| `tensors` | a tensor with its sharding as text |
| `sharding` | `DimSpec`, `ShardingSpec`, `P`, `compute_global_shape`, `needs_reshard` |
| `pending` | who holds what of a pending tensor, and which tensors cannot be pending |
| `collective` | the collectives and their bytes: the one place that defines them |
| `notation` | the reader of every string: it gives parts, the nouns are made of them |
| `rule` | `RulePattern` as written, `OpShardingRule` bound to shapes |
| `rule_parts`, `bind` | what both are made of; from the one and shapes to the other |
| `factors` | `FactorSharding`: factors -> axes, for one op |
| `band` | `Band`: which keys a query sees, said without a tensor |
| `op_record` | `OpRecord`: all the rule book knows of an op |
| `resharding/` | `reshard`, `reshard_table`: from any sharding to any other |
| `foreign`, `interop` | PyTorch's placements and JAX's PartitionSpecs, read and written, without importing either |

To extend: a new way to write a sharding goes into `ShardingSpec.of`; a new step of resharding into
`resharding.moves` (what it does), `collective` (what it costs), `resharding.lower_bound` (why the bound still holds)
and `tests/simulate.py` (what it means).
"""

from .axes import AxisRef
from .factors import FactorSharding
from .mesh import DeviceMesh
from .op_record import Call, Flow, OpRecord
from .resharding.cheapest import reshard, reshard_bytes, reshard_table
from .resharding.steps import Step
from .rule import OpShardingRule, RulePattern
from .sharding import DimSpec, P, ShardingSpec, compute_global_shape, needs_reshard

__all__ = [
    "AxisRef",
    "Call",
    "DeviceMesh",
    "DimSpec",
    "FactorSharding",
    "Flow",
    "OpRecord",
    "OpShardingRule",
    "P",
    "RulePattern",
    "ShardingSpec",
    "Step",
    "compute_global_shape",
    "needs_reshard",
    "reshard",
    "reshard_bytes",
    "reshard_table",
]
