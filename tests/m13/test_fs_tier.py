"""Files that are whole or not there, and what becomes of those that are not what was asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm.core.kv_offload import HostBlock, JobResult
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.fs_tier import FileSystemTier

KEY, PARENT = b"k" * 32, b"p" * 32
HOST = HostBlock(2, PARENT, (5, 6, 7, 8))
IDENTITY = b"\x11" * 32


class Cache:
    """What a mover needs of a KV cache: two layers of 4 blocks of 4 tokens."""

    def __init__(self) -> None:
        self.tensors = [torch.zeros(2, 4, 4, 1, 8, dtype=torch.bfloat16) for _ in range(2)]


def make_tier(folder: Path, *, limit: int = 1 << 30, identity: bytes = IDENTITY) -> tuple[FileSystemTier, BlockMover]:
    mover = BlockMover(Cache(), 4)  # type: ignore[arg-type]
    for tensor in mover.swap_tensors:
        tensor.zero_()
    return FileSystemTier(folder, identity, [mover], limit), mover


def fill(mover: BlockMover, block: int, number: float) -> None:
    for layer, tensor in enumerate(mover.swap_tensors):
        tensor[:, block] = number + layer


def finished(tier: FileSystemTier, count: int = 1) -> list[JobResult]:
    found: list[JobResult] = []
    while len(found) < count:
        found += tier.get_finished_jobs(wait=True)
    return found


def stored(folder: Path, **kwargs: Any) -> Path:
    """The file of a block that is full of threes."""
    tier, mover = make_tier(folder, **kwargs)
    fill(mover, 2, 3.0)
    tier.submit_store(KEY, HOST)
    assert finished(tier) == [JobResult(KEY, 2, is_load=False, success=True)]
    return tier.folder / KEY.hex()


def load(folder: Path, key: bytes = KEY, host: HostBlock = HOST, **kwargs: Any) -> tuple[bool, list[float]]:
    """By another engine, into block 1: whether it came, and what the block has in each layer."""
    tier, mover = make_tier(folder, **kwargs)
    tier.submit_load(key, host._replace(block=1))
    (result,) = finished(tier)
    return result.success, [tensor[:, 1].float().mean().item() for tensor in mover.swap_tensors]


def test_another_engine_finds_what_was_stored(tmp_path: Path) -> None:
    stored(tmp_path)
    assert make_tier(tmp_path)[0].lookup(KEY)
    assert load(tmp_path) == (True, [3.0, 4.0])


def test_another_identity_finds_nothing(tmp_path: Path) -> None:
    stored(tmp_path)
    assert not make_tier(tmp_path, identity=b"\x12" * 32)[0].lookup(KEY)


@pytest.mark.parametrize(
    ("key", "host"),
    [
        (KEY, HOST._replace(parent=b"")),
        (KEY, HOST._replace(token_ids=(5, 6, 7, 9))),
        (b"l" * 32, HOST),
        (KEY + b"\0\1", HOST),
    ],
)
def test_what_holds_something_else_is_refused_and_deleted(tmp_path: Path, key: bytes, host: HostBlock) -> None:
    path = stored(tmp_path)
    path = path.rename(path.with_name(key.hex()))
    assert load(tmp_path, key, host)[0] is False
    assert not path.exists()


@pytest.mark.parametrize("where", ["magic", "keys", "check", "cut", "longer", "empty"])
def test_a_spoilt_file_is_refused_and_deleted(tmp_path: Path, where: str) -> None:
    path = stored(tmp_path)
    data = bytearray(path.read_bytes())
    if where in ("magic", "keys", "check"):
        data[{"magic": 0, "keys": len(data) // 2, "check": -1}[where]] ^= 1
    path.write_bytes({"cut": data[:-100], "longer": data + b"\0", "empty": b""}.get(where, data))
    assert load(tmp_path)[0] is False
    assert not path.exists()


def test_a_file_that_is_gone_is_no_error(tmp_path: Path) -> None:
    stored(tmp_path).unlink()
    assert load(tmp_path)[0] is False


def test_what_is_there_is_written_over(tmp_path: Path) -> None:
    path = stored(tmp_path)
    path.write_bytes(b"spoilt")
    stored(tmp_path)
    assert load(tmp_path) == (True, [3.0, 4.0])


def test_a_full_disk_costs_a_hit_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    path = stored(tmp_path)
    monkeypatch.undo()
    assert list(path.parent.iterdir()) == []
    assert load(tmp_path)[0] is False


def test_the_oldest_are_forgotten_and_what_is_asked_for_is_not_old(tmp_path: Path) -> None:
    size = stored(tmp_path).stat().st_size
    tier, _ = make_tier(tmp_path, limit=20 * size)
    tier.flush().result()  # it has looked through the folder once
    folder = tier.folder
    for number in range(25):
        path = folder / f"{number:02}"
        path.write_bytes(bytes(size))
        os.utime(path, ns=(number, number))
    other = tmp_path / "another identity"
    other.mkdir()
    (other / "old").write_bytes(bytes(size))
    os.utime(other / "old", ns=(1, 1))
    tier.touch([bytes.fromhex("01"), bytes.fromhex("00")])
    for _ in range(2):  # a 16th of the limit has been written
        tier.submit_store(KEY, HOST)
    tier.flush().result()
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["00", "01", *(f"{number:02}" for number in range(10, 25)), KEY.hex()]
    assert list(other.iterdir()) == []
    assert (folder / "00").stat().st_mtime_ns <= (folder / "01").stat().st_mtime_ns


def test_after_a_reset_nothing_is_there(tmp_path: Path) -> None:
    tier, mover = make_tier(tmp_path)
    fill(mover, 2, 3.0)
    tier.submit_store(KEY, HOST)
    tier.reset()
    assert not tier.lookup(KEY)
