"""CUDA graphs without CUDA: that padding a batch to a recorded size changes no token.

In place of recorded kernels the model runs on the buffers that they would read. Otherwise all is as on a GPU: outputs
lie where the next replay writes, and whatever load() does not overwrite is unusable.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from folovllm import LLMEngine, SamplingParams
from folovllm.sample.gumbel import GumbelParams
from folovllm.worker import async_output, cuda_graph
from folovllm.worker.async_output import HostCopy
from folovllm.worker.cuda_graph import CudaGraphs, GraphBuffers, GraphOutputs, padded_size
from folovllm.worker.input_batch import StepInputs
from tests.helpers import thinned
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m4.ahead_support import Watch

UNUSABLE = -(10**6)  # as an index it raises, as a length as well


class EagerGraphs(CudaGraphs):
    """Replays by computing."""

    def __init__(self, engine: LLMEngine, sizes: list[int]) -> None:
        self.model, self.sizes, self.draws = engine.runner.model, sizes, False
        batch = engine.runner.batch
        max_model_len = batch.token_ids.shape[1]
        self.buffers = GraphBuffers(sizes[-1], max_model_len, batch.block_size, torch.device("cpu"))
        self.prompts: Any = SimpleNamespace(shape_for=lambda nums: None, shape_for_drafts=lambda nums: None)
        self.outputs = GraphOutputs(sizes[-1], self.model.decoder_spec, torch.float32, torch.device("cpu"))
        self.replayed: list[tuple[int, int]] = []  # (sequences, size)

    def replay(
        self, inputs: StepInputs, size: int, gumbel_params: GumbelParams | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.replayed.append((len(inputs.rows), size))
        buffers = self.buffers
        buffers.packed.fill_(UNUSABLE)
        buffers.block_tables.fill_(UNUSABLE)
        buffers.load(inputs, size, gumbel_params)
        self.outputs.logits.fill_(torch.nan)
        self._forward(size)
        return self.outputs.first(size)


class CopyAtOnce(HostCopy):
    """On a GPU the copy is queued when it is asked for: before the next replay."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.clone())


@pytest.fixture(autouse=True)
def copies_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_output, "HostCopy", CopyAtOnce)


def with_graphs(engine: LLMEngine, sizes: list[int]) -> EagerGraphs:
    """With a cache in which nothing is good that nobody has written."""
    for tensor in engine.runner.kv_cache.tensors:
        tensor.fill_(float("nan"))
    graphs = engine.runner.graphs = EagerGraphs(engine, sizes)
    return graphs


SIZES = [[1, 2, 4, 8], [8], [3, 6], [1, 2]]
AHEAD = {"in turn": False, "ahead": True}


@pytest.mark.parametrize(("sizes", "run_ahead"), thinned({str(sizes): sizes for sizes in SIZES}, AHEAD))
def test_greedy_tokens_are_hugging_faces_at_every_batch_size(oracle: Oracle, sizes: list[int], run_ahead: bool) -> None:
    """From one sequence up to seven and down again: what a larger batch left in the buffers is there for a smaller."""
    engine = oracle.make_llm(async_scheduling=run_ahead, max_num_seqs=8, block_size=4, num_kv_blocks=90).engine
    graphs, watch = with_graphs(engine, sizes), Watch(engine)
    prompts = [[i + 3] * (1 + 5 * (i % 3)) for i in range(7)]
    done = {}
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, SamplingParams(temperature=0, max_tokens=10 + 2 * (i % 4)))
        for _ in range(2):
            done |= {output.request_id: output for output in watch.step() if output.finished}
    done |= watch.run()
    for i, prompt in enumerate(prompts):
        assert done[str(i)].outputs[0].token_ids == oracle.greedy(prompt, 10 + 2 * (i % 4))
    assert {size for _, size in graphs.replayed} == set(sizes)
    assert all(size == padded_size(num_seqs, sizes) for num_seqs, size in graphs.replayed)
    assert any(num_seqs < size for num_seqs, size in graphs.replayed) == (sizes != [1, 2])
    assert bool(watch.ahead) == run_ahead
    assert_idle(engine)


def test_a_prompt_of_several_tokens_takes_no_graph(oracle: Oracle) -> None:
    engine = oracle.make_llm().engine
    graphs, watch = with_graphs(engine, [1, 2, 4]), Watch(engine)
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
    watch.step()
    assert graphs.replayed == []
    watch.step()
    assert graphs.replayed == [(1, 1)]
    engine.add_request("b", [4, 5], SamplingParams(temperature=0, max_tokens=4))
    watch.step()  # a decode beside a prefill
    assert graphs.replayed == [(1, 1)]
    watch.step()
    assert graphs.replayed == [(1, 1), (2, 2)]


def test_padding_touches_the_null_block_and_no_other(oracle: Oracle) -> None:
    engine = oracle.make_llm(block_size=4, num_kv_blocks=20).engine
    with_graphs(engine, [4])
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=3))
    watch = Watch(engine)
    watch.step()
    watch.step()
    (seq,) = engine.scheduler.running[0].get_seqs()
    for layer in engine.runner.kv_cache.tensors:
        written = ~layer.isnan().flatten(3).any(-1).any(0)  # [num_blocks, block_size]
        slots = {(block, offset) for block, offset in written.nonzero().tolist()}
        assert slots == {(0, 0), *((seq.block_ids[0], offset) for offset in range(4))}
    watch.run()


def test_without_cuda_there_are_no_graphs(oracle: Oracle) -> None:
    assert oracle.make_llm().engine.runner.graphs is None
    assert oracle.make_llm(enforce_eager=True).engine.runner.graphs is None


def test_recording_runs_each_size_once_before_and_the_largest_first(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one memory pool. What torch's allocator gives back before a recording is not counted as the graph's."""
    said: list[Any] = []
    taken, kept, needs = 0, 0, {4: 2000, 2: 100, 1: 50}  # kept: by the allocator, of what the forward before has left

    def give_back() -> None:
        nonlocal taken, kept
        taken, kept = taken - kept, 0
        if said[-1] != "give back":
            said.append("give back")

    def forward(module: object, args: Any) -> None:
        nonlocal taken, kept
        taken, kept = taken + 700, kept + 700
        said.append(len(args[0]))

    @contextmanager
    def recording(graph: object, pool: object, **_: object) -> Any:
        nonlocal taken, kept
        give_back()
        said.append(("begin", pool))
        yield
        taken, kept = taken - kept + needs[said[-1]], 0
        said.append("end")

    monkeypatch.setattr(cuda_graph.torch.cuda, "mem_get_info", lambda: (9000 - taken, 9000))
    monkeypatch.setattr(cuda_graph.torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(cuda_graph.torch.cuda, "empty_cache", give_back)
    monkeypatch.setattr(cuda_graph.torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(cuda_graph.torch.cuda, "graph", recording)
    model = oracle.make_llm().engine.runner.model
    handle = model.register_forward_pre_hook(forward)
    try:
        graphs = CudaGraphs(
            model, [1, 2, 4], max_model_len=32, block_size=4, dtype=torch.float32, device=torch.device("cpu"),
            draws=False,
        )  # fmt: skip
    finally:
        handle.remove()
    assert said == [part for size in (4, 2, 1) for part in (size, "give back", ("begin", "pool"), size, "end")]
    assert graphs.graph_bytes == needs
    assert graphs.pool_bytes == 2150
