"""The small helpers: seeds, suggestions, logging, devices, and the names that outside code imports."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import torch
from rich.logging import RichHandler

from folovllm.utils import devices
from folovllm.utils.checks import did_you_mean, nearest_name
from folovllm.utils.common import (
    generate_request_id,
    get_device,
    get_gpu_memory_info,
    is_cuda_available,
    move_to_device,
    set_random_seed,
)
from folovllm.utils.logging import init_logger


def test_the_seed_reaches_every_global_generator() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    set_random_seed(7)
    first = draw()
    set_random_seed(7)
    assert draw() == first
    set_random_seed(8)
    assert all(x != y for x, y in zip(draw(), first, strict=True))


def test_the_seed_takes_a_seed_that_numpy_alone_would_refuse() -> None:
    set_random_seed(2**40)


def test_nearest_name() -> None:
    assert nearest_name("blocksize", ["block_size", "seed"]) == "block_size"
    assert nearest_name("zzz", ["block_size", "seed"]) is None
    assert did_you_mean("blocksize", ["block_size"]) == "did you mean 'block_size'?"
    assert did_you_mean("zzz", ["block_size"]) == ""


def test_a_hint_is_never_another_thing_whose_letters_are_alike() -> None:
    alike = [("--ssl-keyfile", "--salt-by-key"), ("data_size", "tensor_size"), ("log_stats", "no_log_stats")]
    for typed, other in alike:
        assert nearest_name(typed, [other]) is None
    assert nearest_name("--max-num-seq", ["--max-num-seqs", "--max-num-blocks"]) == "--max-num-seqs"


def test_loggers_share_one_handler_and_leave_the_root_alone() -> None:
    before = list(logging.getLogger().handlers)
    a, b = init_logger("folovllm.a"), init_logger("elsewhere")
    assert (a.name, b.name) == ("folovllm.a", "folovllm.elsewhere")
    ours = [h for h in logging.getLogger("folovllm").handlers if isinstance(h, RichHandler)]
    assert len(ours) == 1  # pytest may have attached its own
    assert logging.getLogger().handlers == before


@pytest.mark.parametrize(
    ("amx", "avx512", "expected"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_bf16_units_are_either_kind(amx: bool, avx512: bool, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOLOVLLM_CPU_BF16", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    assert devices.cpu_has_bf16_units() is expected


def test_a_torch_without_the_probes_has_no_bf16_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOLOVLLM_CPU_BF16", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    assert devices.cpu_has_bf16_units() is False


@pytest.mark.parametrize("units", [False, True])
def test_the_environment_answers_in_the_cpus_place(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: not units, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: not units, raising=False)
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "yes" if units else "no")
    assert devices.cpu_has_bf16_units() is units
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "")
    assert devices.cpu_has_bf16_units() is not units
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", "1")
    with pytest.raises(ValueError, match="^FOLOVLLM_CPU_BF16 must be 'yes' or 'no', got '1'; unset it"):
        devices.cpu_has_bf16_units()


# --- the names that outside code imports


def test_no_two_request_ids_are_equal() -> None:
    ids = [generate_request_id() for _ in range(1000)]
    assert all(isinstance(request_id, str) for request_id in ids)
    assert len(set(ids)) == 1000


@pytest.mark.parametrize("turn", range(2))
def test_a_test_draws_the_same_numbers_whatever_was_drawn_before_it(turn: int) -> None:
    drawn = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(4))


@pytest.mark.parametrize(("cuda", "chosen"), [(False, "cpu"), (True, "cuda")])
def test_the_device_that_is_not_named_is_a_gpu_where_there_is_one(
    cuda: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert is_cuda_available() is cuda
    assert get_device() == torch.device(chosen)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_the_device_that_is_named_is_the_one_returned(name: str) -> None:
    assert get_device(name) == torch.device(name)


def test_without_a_gpu_there_is_no_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert get_gpu_memory_info() == {}


def test_gpu_memory_is_told_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1024**3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 * gib)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * gib)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 * gib, 8 * gib))
    expected = {"allocated_gb": 1.0, "reserved_gb": 2.0, "free_gb": 5.0, "total_gb": 8.0}
    assert get_gpu_memory_info() == expected


def test_tensors_are_moved_in_order_and_the_originals_stay() -> None:
    tensors = [torch.tensor([1, 2]), torch.tensor([3])]
    moved = move_to_device(iter(tensors), torch.device("meta"))
    assert [t.shape for t in moved] == [(2,), (1,)]
    assert {t.device.type for t in moved} == {"meta"}
    assert {t.device.type for t in tensors} == {"cpu"}


def test_a_tensor_that_is_on_the_device_already_is_not_copied() -> None:
    tensor = torch.tensor([1])
    assert move_to_device([tensor], torch.device("cpu"))[0] is tensor
