"""Arrays in shards that a user holds: made, computed with one call at a time, and logged.

| file | what it holds |
|---|---|
| `sharded` | `ShardedArray`, and `randn`, `zeros`, `ones`, `asarray` that make them; `with_sharding_constraint` |
| `eager` | one call on arrays in shards as a Program |
| `random` | counter-based random numbers: a function of the global index |
| `event_log` | the flat log of what sharded arrays do |

To extend: another framework's arrays are a module ``tensors`` behind its door, as `shardwright.torch.tensors` is.
"""
