"""Our own rule book held against what discovery finds.

| file | what it holds |
|---|---|
| `compare` | a record's claims beside the oracle's findings |
| `numpy`, `numpy_mesh` | NumPy's ops, by the oracle and split on a mesh |
| `own_op` | `check_op`: all that an op in one file claims |
| `torch`, `torch_calls`, `torch_more`, `torch_mesh` | ATen's ops, from captured calls, split on a mesh |
| `page` | the table beside DTensor's |
| `names` | which ops are whose |
"""
