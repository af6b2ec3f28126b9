"""CALLS: more calls of an operator from the given ones.

| file | what it holds |
|---|---|
| `widen` | each argument varied by its kind; other dims, dtypes and shapes |
| `named` | numbers, words and dtypes that the operator's code, documentation and errors name |
| `fresh` | fresh calls: a call changed in a few ways at once, as long as it still runs |
| `forms` | other shapes of a tensor |
| `numbers` | the numbers in their tensors |
"""
