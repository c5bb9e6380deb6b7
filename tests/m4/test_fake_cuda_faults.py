"""Faults planted into the engine's own code are found by the stand-in for a CUDA device, each with its own error or by
wrong tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from folovllm import SamplingParams
from folovllm.models.decoder import Decoder
from folovllm.utils import upload
from folovllm.worker import async_output, input_batch, model_runner
from folovllm.worker.cuda_graph import CudaGraphs, GraphBuffers
from tests.fake_cuda import (
    CaptureError,
    DeviceMismatchError,
    EscapedMemoryError,
    FakeCuda,
    FreedMemoryError,
    PinnedMemoryError,
)
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import make_engine, replaced

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]  # tests of the stand-in that other tests use
PROMPTS = [[5, 6, 7], [9, 9]]


@pytest.fixture(scope="module")
def small_oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """With one layer: a fault is in what all layers share, or in each of them."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return Oracle(tmp_path_factory.mktemp("small"), **sizes)


def right(oracle: Oracle) -> bool:
    """Whether a small engine says what Hugging Face says."""
    engine = make_engine(oracle, max_num_seqs=2, max_model_len=16, num_kv_blocks=8)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, SamplingParams(temperature=0, max_tokens=4))
    done: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step() if output.finished}
    said = [done[str(number)].outputs[0].token_ids for number in range(len(PROMPTS))]
    return said == [oracle.greedy(prompt, 4) for prompt in PROMPTS]


def test_without_a_fault_all_is_well(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    assert right(small_oracle)


def inside_the_recording(
    fault: Callable[[CudaGraphs], object],
) -> tuple[Any, str, Callable[..., Any]]:
    def forward(old: Any, self: CudaGraphs, size: int) -> Any:
        fault(self)
        return old(self, size)

    return CudaGraphs, "_forward", forward


def no_run_before(old: Any, self: CudaGraphs) -> None:
    pool = torch.cuda.graph_pool_handle()
    with torch.inference_mode():
        for size in self.sizes:
            self.recorded[size] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.recorded[size], pool=pool):
                self._forward(size)


def keep_a_buffer(self: CudaGraphs) -> None:
    """As a buffer would be that is made at its first use in each graph."""
    self.kept = [*getattr(self, "kept", []), torch.empty(3, device="cuda")]


def made_anew(old: Any, self: GraphBuffers, inputs: Any, size: int, gumbel_params: Any) -> None:
    self.packed = self.packed.clone()
    old(self, inputs, size, gumbel_params)


def one_staging_buffer() -> Callable[..., Any]:
    """For all steps: the next step writes where the copy of this one still reads."""
    host: list[torch.Tensor] = []

    def reusing(old: Any, device: torch.device, *arrays: np.ndarray) -> Any:
        host.extend([] if host else [torch.empty(1 << 12, dtype=torch.uint8, pin_memory=True)])
        offsets, size = upload.layout(arrays)
        upload.pack(arrays, offsets, host[0].numpy())
        return upload.unpack(host[0][:size].to(device, non_blocking=True), arrays, offsets)

    return reusing


FAULTS: dict[str, tuple[tuple[Any, str, Callable[..., Any]], type[Exception]]] = {
    "item": (inside_the_recording(lambda graphs: graphs.buffers.packed[3, 0].item()), CaptureError),
    "upload": (inside_the_recording(lambda graphs: torch.tensor([1], device="cuda")), CaptureError),
    "draw": (inside_the_recording(lambda graphs: torch.empty(3, device="cuda").exponential_()), CaptureError),
    "compilation": ((CudaGraphs, "record", no_run_before), CaptureError),
    "kept memory": (inside_the_recording(keep_a_buffer), EscapedMemoryError),
    "input made anew": ((GraphBuffers, "load", made_anew), FreedMemoryError),
    "host tensor": (
        (Decoder, "forward", lambda old, self, *args: old(self, *args) + torch.zeros(1, 64)),
        DeviceMismatchError,
    ),
    "other device": (
        (Decoder, "forward", lambda old, self, *args: old(self, *args) + torch.zeros(1, 64, device="cuda:1")),
        DeviceMismatchError,
    ),
    "one staging buffer": ((input_batch, "upload", one_staging_buffer()), PinnedMemoryError),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(
    small_oracle: Oracle, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (owner, attribute, fault), error = FAULTS[name]
    replaced(owner, attribute, fault, monkeypatch)
    with pytest.raises(error):
        right(small_oracle)


def test_tokens_that_are_read_before_they_came(
    small_oracle: Oracle, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_output.HostCopy, "get", lambda self: self._tensor)
    with pytest.raises(Exception, match="index|out of range|0x7b|poison"):
        assert right(small_oracle), "poison"


def test_indices_from_host_memory_are_a_wait(
    small_oracle: Oracle, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_list(old: Any, rows: torch.Tensor, places: torch.Tensor | None, count: int) -> torch.Tensor:
        return rows[list(range(count))] if places is None else old(rows, places, count)

    replaced(model_runner, "_at", by_list, monkeypatch)
    assert right(small_oracle)
    assert "indices from host memory" in dict(fake_cuda.waits)
