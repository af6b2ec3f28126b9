"""PyTorch's operators for discovery.

| file | what it holds |
|---|---|
| `names`, `ops` | an operator from its name; the ATen calls below a function |
| `samples`, `schema_samples` | calls from PyTorch's OpInfo database, or from schemas |
| `dtensor` | what DTensor does with a call |
"""
