"""Every attention backend that can run on this machine's CPU against the same table, in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import folovllm
from folovllm.attention.backend import BACKENDS, get_backend_class, select_backend
from folovllm.attention.backends.dense import DenseBackend
from tests.helpers import names, thinned
from tests.m4.attention_reference import BATCHES, SHAPES, Shape, make_case

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
HERE = [name for name in BACKENDS if get_backend_class(name).unavailable_reason(CPU) is None]
needs_triton = pytest.mark.skipif("triton" not in HERE, reason="the triton backend does not run on this CPU")
MIXED = [(1, 33), (1, 0), (5, 0), (7, 12)]


@pytest.mark.parametrize(
    ("name", "batch", "shape"), thinned(names(HERE), names(BATCHES), {str(shape): shape for shape in SHAPES})
)
def test_the_table(name: str, batch: str, shape: Shape) -> None:
    make_case(get_backend_class(name), BATCHES[batch](shape.block_size), shape).check()


@pytest.mark.parametrize("name", HERE)
def test_decodes_are_right_when_nobody_says_that_they_are(name: str) -> None:
    make_case(get_backend_class(name), MIXED, say_decodes=False).check()


@pytest.mark.parametrize("name", HERE)
def test_queries_keep_their_dtype_over_a_cache_in_another(name: str) -> None:
    shape = SHAPES[0]._replace(dtype=torch.bfloat16)
    make_case(get_backend_class(name), MIXED, shape, query_dtype=torch.float32).check()


@pytest.mark.parametrize("name", HERE)
def test_infinite_garbage_in_unwritten_slots_reaches_no_result(name: str) -> None:
    case = make_case(get_backend_class(name), MIXED)
    case.layer.kv_cache[case.layer.kv_cache.isnan()] = torch.inf
    case.check()


@pytest.mark.parametrize("name", HERE)
def test_a_step_may_be_followed_by_one_of_another_shape(name: str) -> None:
    """Plans and memory of one step must not reach the next."""
    backend = get_backend_class(name)
    long, short = make_case(backend, [(1, 70), (6, 30)]), make_case(backend, [(1, 3), (2, 5), (1, 9)], seed=1)
    short.layer.backend = long.layer.backend
    long.check()
    short.check()
    long.check()


@needs_triton
@pytest.mark.parametrize("head_size", [16, 24, 80])
@pytest.mark.parametrize("block_size", [1, 5])
def test_triton_takes_any_head_size_and_any_block_size(head_size: int, block_size: int) -> None:
    shape = Shape(2, 1, head_size, block_size, torch.float32)
    make_case(get_backend_class("triton"), [(1, 9), (3, 4)], shape).check()


def test_the_order_of_preference() -> None:
    ours = [name for name in BACKENDS if name in ("triton", "paged_torch", "dense")]
    assert ours == ["triton", "paged_torch", "dense"]


def test_on_a_cpu_no_interpreter_is_picked_unasked() -> None:
    assert select_backend(None, CPU).name != "triton"


def test_without_the_interpreter_triton_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert get_backend_class("triton").unavailable_reason(CPU) == "needs a CUDA device"
    with pytest.raises(ValueError, match="attention_backend 'triton' cannot run on cpu: needs a CUDA device"):
        select_backend("triton", CPU)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend_class("triton")
    monkeypatch.setattr(sys.modules[backend.__module__], "find_spec", lambda wanted: None)
    assert "triton is not installed" in str(backend.unavailable_reason(torch.device("cuda")))


def test_the_package_needs_no_triton(tmp_path: Path) -> None:
    """Every backend's module is imported to ask whether it can run, so none may import what may be missing."""
    code = """
import sys
sys.modules["triton"] = None
from folovllm.attention.backend import BACKENDS, get_backend_class, select_backend
import torch
print(*(get_backend_class(name).name for name in BACKENDS), select_backend(None, torch.device("cpu")).name)
"""
    env = os.environ | {"PYTHONPATH": str(Path(folovllm.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=env
    )
    assert done.stdout.split()[: len(BACKENDS)] == list(BACKENDS)


def test_a_backend_that_cannot_run_here_says_why(monkeypatch):
    monkeypatch.setattr(DenseBackend, "unavailable_reason", classmethod(lambda cls, device: "it is Sunday"))
    with pytest.raises(ValueError, match="attention_backend 'dense' cannot run on cpu: it is Sunday"):
        select_backend("dense", CPU)
