"""A folder behind host memory: a file for each block, written by one thread and read by another.

    folder/3f09…/5a3c…     record    magic, hash, parent's hash, token ids, how many bytes of keys and values
                           keys and values
                           CRC-32 of both

A file is written under another name and renamed, so a kill leaves a whole file or none, and engines may share a folder.
Nothing is synced: what a power cut tears, the CRC finds. A file that is not what was asked for, byte for byte, is
deleted. A full disk costs hits and no more.

3f09… is the identity of what computes: engines with other weights, or that compute other bits, have other folders. The
files of all have a limit, beyond which each engine may be by a 16th; those go first whose last use is longest ago.

vLLM: v1/kv_offload/tiering/fs/manager.py, io.py
"""

from __future__ import annotations

import os
import queue
import struct
import zlib
from array import array
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from folovllm.core.kv_offload import HostBlock, JobResult
from folovllm.utils.logging import init_logger
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.pinned_mover import PinnedBlockMover

logger = init_logger(__name__)

HEAD = struct.Struct("<8s34s34sIQ")  # a hash has 32 bytes, and two more in groups of layers but the first
CRC = struct.Struct("<I")
PATIENCE = 0.1  # seconds for which a step without work waits for a read


class FileSystemTier:
    """A SecondaryTier. A thread has a block for as long as its job takes.

    Args:
        identity: of all that keys and values depend on.
        movers: have the host blocks; a draft model's lie beside the model's.
        limit: bytes of all files in `folder`.
    """

    def __init__(
        self, folder: Path, identity: bytes, movers: Sequence[BlockMover | PinnedBlockMover], limit: int
    ) -> None:
        self.root, self.folder, self.movers, self.limit = folder, folder / identity.hex()[:32], movers, limit
        self.folder.mkdir(parents=True, exist_ok=True)
        self._num_bytes = sum(part.nbytes for mover in movers for part in mover.host_block(1))
        self._writer, self._reader = (ThreadPoolExecutor(1, f"folovllm-{name}") for name in ("write", "read"))
        self._finished: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._unseen, self._has_warned = 0, False  # bytes written since the folder was looked through
        self._writer.submit(self._make_room)

    def lookup(self, key: bytes) -> bool:
        return self._path(key).exists()

    def submit_store(self, key: bytes, host: HostBlock) -> None:
        self._writer.submit(self._store, key, host)

    def submit_load(self, key: bytes, host: HostBlock) -> None:
        self._reader.submit(self._load, key, host)

    def get_finished_jobs(self, *, wait: bool) -> list[JobResult]:
        finished: list[JobResult] = []
        with suppress(queue.Empty):
            finished += [self._finished.get(timeout=PATIENCE)] if wait else []
            while True:
                finished.append(self._finished.get_nowait())
        return finished

    def touch(self, keys: Sequence[bytes]) -> None:
        self._writer.submit(self._touch, keys)

    def reset(self) -> None:
        """Before it returns, what is being written or read is done with."""
        self._writer.submit(self._clear).result()

    def flush(self) -> Future[None]:
        """Is done when all that was to be stored by now is in files."""
        return self._writer.submit(lambda: None)

    def _path(self, key: bytes) -> Path:
        return self.folder / key.hex()

    def _record(self, key: bytes, host: HostBlock) -> bytes:
        head = HEAD.pack(b"folokv01", key, host.parent, len(host.token_ids), self._num_bytes)
        return head + array("i", host.token_ids).tobytes()

    def _parts(self, host: HostBlock) -> list[memoryview]:
        """Its bytes in host memory."""
        return [part for mover in self.movers for part in mover.host_block(host.block)]

    def _store(self, key: bytes, host: HostBlock) -> None:
        path, record = self._path(key), self._record(key, host)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                check = zlib.crc32(record)
                file.write(record)
                for part in self._parts(host):
                    file.write(part)
                    check = zlib.crc32(part, check)
                file.write(CRC.pack(check))
            temporary.replace(path)
            self._unseen += self._num_bytes
            if self._unseen > self.limit // 16:
                self._make_room()
        except OSError as error:
            if not self._has_warned:
                logger.warning("%s keeps no blocks of the KV cache: %s", self.folder, error)
            self._has_warned = True
            with suppress(OSError):
                temporary.unlink()
        finally:
            self._finished.put(JobResult(key, host.block, is_load=False, success=True))

    def _load(self, key: bytes, host: HostBlock) -> None:
        path, success = self._path(key), False
        try:
            with path.open("rb") as file:
                success = self._read(file, self._record(key, host), self._parts(host))
            if not success:
                path.unlink()
        except OSError:
            pass  # another engine has deleted it
        finally:
            self._finished.put(JobResult(key, host.block, is_load=True, success=success))

    @staticmethod
    def _read(file: BinaryIO, record: bytes, parts: list[memoryview]) -> bool:
        """Whether the file is what was asked for; then its keys and values are in `parts`."""
        if file.read(len(record)) != record:
            return False
        check = zlib.crc32(record)
        for part in parts:
            if file.readinto(part) != part.nbytes:  # type: ignore[attr-defined]
                return False
            check = zlib.crc32(part, check)
        return file.read() == CRC.pack(check)

    def _touch(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # the beginning of a prompt is asked for by more of them, and stays longest
            with suppress(OSError):
                os.utime(self._path(key))

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Delete files, the oldest first, until all of them are a 16th below the limit, if they are above it."""
        files = []
        for path in self.root.glob("*/*"):
            with suppress(OSError):
                files.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        self._unseen, num_bytes = 0, sum(size for _, size, _ in files)
        for _, size, path in sorted(files) if num_bytes > self.limit else ():
            if num_bytes <= self.limit - self.limit // 16:
                break
            with suppress(OSError):
                path.unlink()
            num_bytes -= size
