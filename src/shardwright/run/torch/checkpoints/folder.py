"""Where a checkpoint is: a folder that gets its name when all of it is there.

ckpt            the checkpoint
.ckpt.saving    the next one, while it is written; one that a crash left is thrown away
.ckpt.previous  the one before, between the two renames: where ``ckpt`` is not there, this is it
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from ....errors import CheckpointError, SpecError

METADATA = ".metadata"
_PARTS = re.compile(r"(\.metadata|\.metadata\.tmp|__\d+_\d+\.distcp)\Z")
"""All files that a checkpoint has."""


def checkpoint_path(path: Any) -> Path:
    """A path that the user gave, made absolute."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise SpecError(f"a checkpoint has a path, not {path!r}", help='write step.save("checkpoints/100")')
    text = os.fspath(path)
    if not text.strip() or "\0" in text:
        raise SpecError(f"{text!r} is no path for a checkpoint", help='write step.save("checkpoints/100")')
    found = Path(text).resolve()
    if not found.name:
        raise SpecError(f"{text!r} is no folder of its own", help='write step.save("checkpoints/100")')
    return found


def saving_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.saving")


def previous_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.previous")


def prepare(path: Path) -> Path:
    """An empty folder to write to; what is in the way, and is no checkpoint, is left alone and refused."""
    _check_ours(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = saving_path(path)
    for left in (made, previous_path(path)):
        _check_ours(left)
    _remove(made)
    made.mkdir()
    return made


def finish(path: Path) -> None:
    """What was written becomes the checkpoint."""
    previous = previous_path(path)
    _synced(saving_path(path))
    if path.exists():
        _remove(previous)
        path.rename(previous)
    saving_path(path).rename(path)
    _synced(path.parent)
    _remove(previous)


def existing(path: Path) -> Path:
    """The folder of a checkpoint that is complete."""
    for found in (path, previous_path(path)):
        if (found / METADATA).is_file():
            return found
    if not path.exists():
        fact = "there is no checkpoint"
    elif not path.is_dir():
        fact = "a checkpoint is a folder, this is a file"
    else:
        fact = f"this folder is no checkpoint: it has no {METADATA}"
    raise CheckpointError(fact, rows=[("path", str(path))], help=_near(path))


def _near(path: Path) -> str:
    beside = [folder for folder in (path, path.parent) if folder.is_dir()]
    found = [entry for folder in beside for entry in sorted(folder.iterdir()) if (entry / METADATA).is_file()]
    named = [str(entry) for entry in found if not entry.name.startswith(".")]
    return f"here are: {', '.join(named[-3:])}" if named else "give the path that step.save was given"


def _check_ours(folder: Path) -> None:
    """Nobody's files are thrown away with a checkpoint."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise CheckpointError("a file is where the checkpoint would be", rows=[("path", str(folder))], help=_OTHER)
    odd = sorted(entry.name for entry in folder.iterdir() if not _PARTS.match(entry.name) or entry.is_dir())
    if odd:
        raise CheckpointError(
            "the folder has files that are no part of a checkpoint, so it is not replaced",
            rows=[("path", str(folder)), ("has", ", ".join(odd[:5]))], help=_OTHER,
        )  # fmt: skip


_OTHER = "give the path of a new folder, or of an earlier checkpoint, which is replaced"


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _synced(folder: Path) -> None:
    """The rename itself is on the disk, too."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:  # not every system opens folders
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
