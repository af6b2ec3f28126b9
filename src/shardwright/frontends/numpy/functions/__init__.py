"""Functions of NumPy as they are traced: each answers shape and dtype as NumPy would, and writes ops into the graph.

| file | what it holds |
|---|---|
| `ufuncs`, `contractions`, `reductions`, `norms` | families of functions that compute |
| `shaping`, `joining`, `selecting`, `creating`, `indexing` | families of functions that arrange |
| `replicated` | functions of `numpy.linalg` without a rule, one op each, on whole arrays |

To extend: ``@implements("name")`` over a function with NumPy's parameters, in the family it belongs to.
"""
