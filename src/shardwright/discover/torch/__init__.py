"""PyTorch's operators for discovery.

| file | what it holds |
|---|---|
| `names`, `ops` | an operator from its name; the ATen calls below a function |
| `samples`, `schema_samples` | calls from PyTorch's OpInfo database, or from schemas |
| `own` | operators of one's own: files, calls as text, what is written to, gradients |
| `composite` | the ATen calls that an operator makes, and what DTensor has for them |
| `private` | what is taken from PyTorch's private modules |
"""
