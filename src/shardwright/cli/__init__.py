"""The command line, one file a group of verbs.

| file | what it holds |
|---|---|
| `group` | `main` and the verbs of discovery: `discover`, `audit` |
| `planning` | `plan`, `compare`, `explain` |
| `checking` | `verify`, `run`; `prove`, for parallel programs of others; `trials` is what `run` does |
| `fuzzing` | `fuzz`, random programs |
| `looking` | `calibrate`, `presets`, `rules`, `doctor` |
| `programs` | what a command is about: a program, a saved plan, and the options of planning that all share |
| `models` | models of `transformers` by name: ``hf:NAME`` |
| `output` | text, JSON, files |
| `exits` | exit codes, and the one message of an error |

A new verb is a click command in the `COMMANDS` of a file, which `group` lists; it raises errors, and `exits` ends it.
"""

from .group import main

__all__ = ["main"]
