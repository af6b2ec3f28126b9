"""Plans that fit in memory.

| file | what it holds |
|---|---|
| `one_copy` | `OneCopyPlan`: plans that keep every value in one sharding, and what they hold at every step |
| `search` | `fit`: the search for multipliers on bytes under which the best plan fits |
| `multipliers` | what bytes then cost |
| `enumeration` | small graphs: all plans that may be better, so that the best is proven |
| `mixed` | between a plan that is too large and one that fits |
"""
