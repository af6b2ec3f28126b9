"""From one sharding to another: a list of collectives at least cost, as far as a search of limited length finds it.

| file | what it holds |
|---|---|
| `steps` | `Step`: one collective or local operation, what it costs, and which device sends to which |
| `layouts`, `moves`, `permute` | shardings as lists of atoms; the moves between them; the same shards elsewhere |
| `search`, `lower_bound` | A* search, and the bound that leads it |
| `all_pairs` | the costs of all pairs at once, from the same moves |
| `cheapest` | `reshard`, `reshard_table`, `nearest`: the front door |
| `single_steps` | which single steps there are among many shardings: their closure is what planners route by |
"""
