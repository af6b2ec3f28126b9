"""``.metadata`` of a checkpoint, read through a list of what may stand in it.

PyTorch writes its metadata with Python's pickle, and a pickle calls whatever it names.  Here a name becomes a stand-in
that only remembers what it was given; anything that is not on the list is refused, by name, and nothing of it is even
imported.  The metadata is then built of these records, each looked at: types, sizes, and that file names are names of
files in the folder.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ....errors import CheckpointError
from .folder import METADATA

_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    (_METADATA, "Metadata"), (_METADATA, "TensorStorageMetadata"), (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"), (_METADATA, "TensorProperties"), (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"), (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}  # fmt: skip
_PATHS = {"Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}
_FILE = re.compile(r"[\w.-]+\Z")
TRUST = "if you know who wrote it, and trust them with this account: trusted=True"


@dataclass(frozen=True)
class Stored:
    """Where in the folder a piece is; PyTorch's reader asks for these names."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


class _Record:
    """Stands for an object of a class: remembers what it was made with."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: Any = None

    def __new__(cls, *args: Any) -> _Record:
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """Stand-ins for all names; they belong to this reader, so that nothing is changed for others."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.kinds = {known: type(known[1], (_Record,), {}) for known in _RECORDS}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.kinds:
            return self.kinds[module, name]
        if module == "torch" and isinstance(found := vars(torch).get(name), torch.dtype):
            return found
        if (module, name) == ("torch", "Size"):
            return _sizes
        if (module, name) in (("torch.serialization", "_get_layout"), ("builtins", "getattr")):
            return _text  # of a layout, and of a member of an enum: neither is used any more
        if module in ("pathlib", "pathlib._local") and name in _PATHS:
            return _text
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise CheckpointError(
            f"the checkpoint names {module}.{name}, which no checkpoint needs: nothing of it was run",
            help=f"do not load it; {TRUST}",
        )

    def persistent_load(self, pid: Any) -> Any:
        raise CheckpointError("the checkpoint names objects that are elsewhere, which no checkpoint needs")


def _sizes(sizes: Any = ()) -> tuple[Any, ...]:
    return tuple(sizes)


def _text(*parts: Any) -> str:
    return "/".join(part for part in parts if isinstance(part, str))


def read_metadata(folder: Path, trusted: bool = False) -> Metadata:
    """What PyTorch wrote of a checkpoint; ``trusted`` reads it as PyTorch does."""
    with (folder / METADATA).open("rb") as file:
        try:
            made = pickle.load(file) if trusted else _metadata(_Reader(file).load())
        except CheckpointError as error:
            raise error.add("file", folder / METADATA) from None
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except Exception as error:
            raise _damaged(folder, f"{type(error).__name__}: {error}") from None
    if not isinstance(made, Metadata) or not isinstance(made.storage_data, dict):
        raise _damaged(folder, "there is no list of files")
    return made


def _damaged(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        "the metadata of the checkpoint cannot be read", rows=[("file", str(folder / METADATA)), ("reason", why)],
        help="the file is damaged, or not of torch.distributed.checkpoint; take an earlier checkpoint",
    )  # fmt: skip


# -- from records to what PyTorch reads ---------------------------------------------------------------------


def _metadata(record: Any) -> Metadata:
    fields = _fields(record, "Metadata")
    tensors = {_is(key, str): _kept(value) for key, value in _is(fields["state_dict_metadata"], dict).items()}
    stored = {_index(key): _stored(value) for key, value in _is(fields["storage_data"], dict).items()}
    paths = {_is(key, str): _path(value) for key, value in _is(fields.get("planner_data") or {}, dict).items()}
    return Metadata(tensors, paths, stored)


def _kept(record: Any) -> Any:
    if type(record).__name__ == "BytesStorageMetadata":
        return BytesStorageMetadata()
    fields = _fields(record, "TensorStorageMetadata")
    properties = fields["properties"].state
    dtype = properties[0] if isinstance(properties, tuple) else properties["dtype"]
    chunks = []
    for chunk in _is(fields["chunks"], list):
        parts = _fields(chunk, "ChunkStorageMetadata")
        chunks.append(ChunkStorageMetadata(_shape(parts["offsets"]), _shape(parts["sizes"])))
    return TensorStorageMetadata(TensorProperties(_is(dtype, torch.dtype)), _shape(fields["size"]), chunks)


def _index(record: Any) -> MetadataIndex:
    fields = _fields(record, "MetadataIndex")
    offset = fields.get("offset")
    return MetadataIndex(_is(fields["fqn"], str), None if offset is None else _shape(offset))


def _stored(record: Any) -> Stored:
    fields = _fields(record, "_StorageInfo")
    name, offset, length = fields["relative_path"], fields["offset"], fields["length"]
    if not isinstance(name, str) or not _FILE.match(name) or name.startswith(".."):
        raise CheckpointError(
            f"the checkpoint names the file {name!r}, which is not one of its folder", help="do not load it"
        )
    if fields.get("transform_descriptors"):
        raise CheckpointError("the checkpoint is packed by an extension of PyTorch's", help=TRUST)
    _shape((offset, length))
    return Stored(name, offset, length)


def _path(path: Any) -> tuple[str | int, ...]:
    return tuple(_is(part, str) if not isinstance(part, int) else part for part in _is(path, tuple))


def _shape(sizes: Any) -> torch.Size:
    if not all(type(size) is int and size >= 0 for size in _is(sizes, tuple)):
        raise ValueError(f"{sizes!r} are no sizes")
    return torch.Size(sizes)


def _fields(record: Any, kind: str) -> dict[str, Any]:
    if not isinstance(record, _Record) or type(record).__name__ != kind:
        raise ValueError(f"a {type(record).__name__} stands where a {kind} should")
    return dict(_is(record.state, dict))


def _is(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} stands where a {kind.__name__} should")
    return value


__all__ = ["TRUST", "Stored", "read_metadata"]
