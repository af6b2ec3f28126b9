"""The command line, one file a group of verbs.

| file | what it holds |
|---|---|
| `group` | `main` and the verbs of discovery: `discover`, `audit` |
| `planning` | the verbs of planning: `plan`, `verify`, `compare`, `explain`, `calibrate` |
| `proving` | `prove`, for parallel programs of others |
| `fuzzing` | `fuzz`, random programs |
"""

from .group import main

__all__ = ["main"]
