"""Our own rule book held against what discovery finds.

| file | what it holds |
|---|---|
| `compare` | a record's claims beside the oracle's findings |
| `numpy` | NumPy's ops |
| `torch`, `torch_calls`, `torch_more`, `torch_mesh` | ATen's ops, from captured calls, split on a mesh |
| `page` | the table beside DTensor's |
| `names` | which ops are whose |
"""
