"""`save` and `opened`: checkpoints written and read by all ranks, or by one process.

Whatever can be told beforehand is told beforehand, to all ranks: a path that will not do, files that are not there or
end too early, tensors that the files do not hold in full, and names that no checkpoint needs.
"""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from ....errors import CheckpointError, RankError, ShardwrightError
from ....frontends.torch import dtype_name
from ....ir.graph import TensorType
from ..groups import world
from .allowed import TRUST, read_metadata
from .dtensors import has_ranks
from .folder import existing, finish, prepare, saving_path

_dcp: Any = dcp  # untyped in part
_distributed: Any = dist
PATIENCE = timedelta(hours=6)
"""How long ranks wait for the one that reads or writes longest."""
SEEN_AFTER = 10.0
"""Seconds until a folder that another machine made is seen, on file systems that look late."""
T = TypeVar("T")
Place = tuple[str | int, ...]
"""Where in nested containers something stands."""


def save(engine: Any, tree: Mapping[str, Any], path: Path) -> None:
    """Write nested containers of tensors (DTensors on processes) and numbers; all ranks come here."""
    _check_same_path(engine, path)
    first = not has_ranks(engine) or engine.rank == min(engine.mesh.device_ids)
    _everywhere(engine, lambda: prepare(path) if first else None)
    folder = saving_path(path)
    _everywhere(engine, lambda: _check_shared(folder))
    _run(_dcp.save, engine, dict(tree), storage_writer=_dcp.FileSystemWriter(folder))
    _everywhere(engine, lambda: finish(path) if first else None)


def check_plain(extra: Any) -> None:
    """Refuse what could not be read again without trust."""
    file = io.BytesIO()
    try:
        torch.save(extra, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        raise CheckpointError(
            "extra= of a checkpoint takes numbers, texts, tensors, and dicts and lists of them",
            rows=[("reason", str(error).splitlines()[0])],
        ) from None


def opened(engine: Any, path: Path, trusted: bool = False) -> Opened:
    """A checkpoint to read from; all ranks come here."""
    _check_same_path(engine, path)

    def read() -> Opened:
        folder = existing(path)
        return Opened(engine, folder, read_metadata(folder, trusted), trusted)

    return _everywhere(engine, read)


class Opened:
    """A checkpoint of which the metadata was read."""

    def __init__(self, engine: Any, folder: Path, metadata: Metadata, trusted: bool) -> None:
        self.engine, self.folder, self.metadata, self.trusted = engine, folder, metadata, trusted
        self.reader = _Reader(folder, metadata)
        paths = metadata.planner_data or {}
        self.keys: dict[Place, str] = {paths.get(key, (key,)): key for key in metadata.state_dict_metadata}
        self.types: dict[Place, TensorType] = {}
        """Of the tensors."""
        for place, key in self.keys.items():
            kept = metadata.state_dict_metadata[key]
            if isinstance(kept, TensorStorageMetadata):
                self.types[place] = TensorType(tuple(kept.size), dtype_name(kept.properties.dtype))

    def numbers(self) -> dict[Place, Any]:
        """What is no tensor."""
        rest = {place: key for place, key in self.keys.items() if place not in self.types}
        self.examine(rest)
        return _everywhere(self.engine, lambda: {place: self._number(key) for place, key in rest.items()})

    def _number(self, key: str) -> Any:
        with self.reader.piece(MetadataIndex(key)) as piece:
            return torch.load(piece, map_location="cpu", weights_only=not self.trusted)

    def examine(self, places: Iterable[Place]) -> None:
        """Look at the files of these, divided between ranks: that they are whole, and name nothing but tensors."""

        def look() -> None:
            for n, key in enumerate(keys):
                if n % ranks == me:
                    self._examine(key)

        engine = self.engine
        ranks, me = (engine.mesh.size, engine.position) if has_ranks(engine) else (1, 0)
        keys = [self.keys[place] for place in places]
        _everywhere(engine, look)

    def _examine(self, key: str) -> None:
        kept = self.metadata.state_dict_metadata[key]
        if isinstance(kept, TensorStorageMetadata):
            indices = [MetadataIndex(key, chunk.offsets) for chunk in kept.chunks]
            if sum(prod(chunk.sizes) for chunk in kept.chunks) != prod(kept.size):
                raise self._damaged(key, "its parts are not all of it")
        else:
            indices = [MetadataIndex(key)]
        for index in dict.fromkeys(indices):
            self._look_into(key, index)

    def _look_into(self, key: str, index: MetadataIndex) -> None:
        where = self.metadata.storage_data.get(index)
        if where is None:
            raise self._damaged(key, "no file has it")
        file = self.folder / where.relative_path
        try:
            size = file.stat().st_size
        except OSError as error:
            raise self._damaged(key, f"{where.relative_path}: {error.strerror}") from None
        if size < where.offset + where.length:
            raise self._damaged(key, f"{where.relative_path} ends before it")
        if self.trusted:
            return
        try:
            with self.reader.piece(index) as piece:
                named = torch.serialization.get_unsafe_globals_in_checkpoint(piece)
        except (RuntimeError, ValueError, OSError, EOFError) as error:
            raise self._damaged(key, f"{where.relative_path}: {error}") from None
        if named:
            raise CheckpointError(
                f"the checkpoint names {', '.join(sorted(named)[:3])}, which no tensor needs: nothing of it was run",
                rows=[("tensor", key), ("file", str(file))], help=f"do not load it; {TRUST}",
            )  # fmt: skip

    def _damaged(self, key: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint is damaged: {key} cannot be read", rows=[("folder", str(self.folder)), ("reason", why)],
            help="take an earlier checkpoint",
        )  # fmt: skip

    def read(self, targets: Mapping[Place, Any]) -> None:
        """Fill these tensors, each with what stands in its place."""
        flat = {self.keys[place]: tensor for place, tensor in targets.items()}
        _run(_dcp.load, self.engine, flat, storage_reader=self.reader)


class _Reader(_dcp.FileSystemReader):  # type: ignore[misc]
    """PyTorch's, with metadata that was looked at."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self.folder, self.metadata = folder, metadata

    def read_metadata(self) -> Metadata:
        return self.metadata

    def piece(self, index: MetadataIndex) -> _Piece:
        where = self.metadata.storage_data[index]
        return _Piece(self, self.folder / where.relative_path, where)


class _Piece:
    """A part of a file as a file, while it is open."""

    def __init__(self, reader: Any, path: Path, where: Any) -> None:
        self.reader, self.path, self.where = reader, path, where

    def __enter__(self) -> Any:
        self.file = self.path.open("rb")
        return self.reader._slice_file(self.file, self.where)

    def __exit__(self, *_: object) -> None:
        self.file.close()


# -- all ranks ----------------------------------------------------------------------------------------------


_made: dict[tuple[int, tuple[int, ...]], Any] = {}


def _group(engine: Any) -> Any:
    """Of all ranks, on the host, and patient: one that writes long is no fault, and the watch sees one that is gone."""
    ranks = tuple(sorted(engine.mesh.device_ids))
    if (world(), ranks) not in _made:
        _made[world(), ranks] = dist.new_group(
            list(ranks), timeout=PATIENCE, backend="gloo", use_local_synchronization=True
        )
    return _made[world(), ranks]


def _run(call: Callable[..., None], engine: Any, tree: dict[str, Any], **storage: Any) -> None:
    """PyTorch's own saving and loading; what it raises is a dict of errors by rank."""
    ranks = has_ranks(engine)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            call(tree, process_group=_group(engine) if ranks else None, no_dist=not ranks, **storage)
        except _dcp.CheckpointException as error:
            rank, (cause, _) = next(iter(error.failures.items()))
            if not isinstance(cause, Exception):
                raise cause from None  # such as KeyboardInterrupt
            fact = "the checkpoint could not be " + ("saved" if call is _dcp.save else "loaded")
            rows = [(f"rank {rank}" if ranks else "reason", f"{type(cause).__name__}: {cause}")]
            raise CheckpointError(fact, rows=rows) from cause


def _everywhere(engine: Any, work: Callable[[], T]) -> T:
    """Done on this rank, and an error on every rank if it was one on any."""
    if not has_ranks(engine):
        return work()
    failed: Exception | None = None
    try:
        made = work()
    except Exception as error:
        failed = error
    said = _told(engine, None if failed is None else str(failed))
    if failed is not None:
        raise failed
    rank = next((rank for rank, text in said.items() if text is not None), None)
    if rank is not None:
        raise RankError(f"rank {rank} cannot go on with a checkpoint", rows=[(f"rank {rank}", said[rank])])
    return made


def _told(engine: Any, text: str | None) -> dict[int, Any]:
    """A text of every rank."""
    group = _group(engine)
    ranks = _distributed.get_process_group_ranks(group)
    said: list[Any] = [None] * len(ranks)
    _distributed.all_gather_object(said, text, group=group)
    return dict(zip(ranks, said))


def _check_same_path(engine: Any, path: Path) -> None:
    if has_ranks(engine):
        said = _told(engine, str(path))
        if len(set(said.values())) > 1:
            raise RankError(
                "ranks give different paths for one checkpoint",
                rows=[(f"rank {rank}", text) for rank, text in list(said.items())[:4]],
            )


def _check_shared(folder: Path) -> None:
    end = time.monotonic() + SEEN_AFTER
    while not folder.is_dir() and time.monotonic() < end:
        time.sleep(0.1)
    if not folder.is_dir():
        raise ShardwrightError(
            "this rank does not see the folder that rank 0 made", rows=[("folder", str(folder))],
            help="save to a file system that all machines share",
        )  # fmt: skip
