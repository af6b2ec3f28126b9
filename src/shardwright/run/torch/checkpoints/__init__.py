"""Checkpoints of state in shards, over PyTorch's own format (``torch.distributed.checkpoint``).

The idea: a tensor in shards is a DTensor, so that every rank writes what it has, what several have is written once, and
any other mesh, one process or a plain model reads it.  Two things are done with more care than PyTorch does them.  A
checkpoint gets its name when all of it is there, so that a kill at any time leaves the one before.  And what is read is
looked at first: PyTorch's metadata and numbers are Python's own serialised objects, which run whatever they are told.

| file | what it holds |
|---|---|
| `dtensors` | shards as DTensors, and back |
| `folder` | where a checkpoint is: its path looked at, its temporary name, the rename |
| `allowed` | ``.metadata`` read through a list of classes: what else stands in it is refused by name |
| `storing` | `save`; `opened`: a checkpoint to read from, compared and examined before anything is changed |

To extend: a class that a later PyTorch writes into its metadata is a line in `allowed`.
"""

from .dtensors import assembled, check_given, filled, form, form_of, mesh_of, placed, taken, target, zeros
from .folder import checkpoint_path
from .storing import Opened, check_plain, opened, save

__all__ = [
    "Opened",
    "assembled",
    "check_given",
    "check_plain",
    "checkpoint_path",
    "filled",
    "form",
    "form_of",
    "mesh_of",
    "opened",
    "placed",
    "save",
    "taken",
    "target",
    "zeros",
]
