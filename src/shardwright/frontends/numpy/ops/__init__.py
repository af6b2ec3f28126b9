"""Ops in one file each: what is computed, rule, exact meaning and samples together.

Every module of this folder is imported with the frontend, so that a new op is a new file and no line elsewhere.  An op
of a user's own is the same file anywhere: importing it is enough.

| file | what it holds |
|---|---|
| `erf` | the error function, which NumPy lacks |
| `gelu` | the exact GELU |

To extend: a file with a function under ``@op`` (see `frontends.numpy.define`); `shardwright.numpy.check_op` runs all
that it claims.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
