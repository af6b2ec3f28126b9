"""From one sharding to another: the cheapest list of collectives.

| file | what it holds |
|---|---|
| `steps` | `Step`, `reshard`, `nearest`: the front door |
| `layouts`, `moves`, `permute` | shardings as lists of atoms; the moves between them; the same shards elsewhere |
| `search`, `lower_bound` | A* search, and the bound that leads it |
| `all_pairs` | the costs of all pairs at once, from the same moves |
| `single_steps` | which single steps there are among many shardings: their closure is what planners route by |
"""
