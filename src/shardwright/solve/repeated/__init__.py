"""Equal layers found, shortened, solved, unfolded.

| file | what it holds |
|---|---|
| `layers` | `find_layers`: repeats in a graph, checked; `Short`: a graph with fewer of them |
| `stack` | `Stack`: a deep graph by its short one: the problem put together again, and decoded |
| `chain` | its optimum by elimination, layer after layer, where tables stay small |
| `deep` | its optimum by message passing, else |
| `depth` | about how long its step takes, from the schedule of the short one |
"""
