"""Graphs of fewer sequences than eight compute eight tokens: products do, attention and the head do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from folovllm import SamplingParams
from folovllm.attention.kernels import paged_decode
from folovllm.worker.cuda_graph import FEWEST_TOKENS, GraphBuffers
from tests.fake_cuda import FakeCuda
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import make_engine, replaced, serve_on_cpu

GREEDY = [SamplingParams(temperature=0, max_tokens=count) for count in (8, 6, 3)]
PROMPTS = [[3, 9], [5] * 7, [8, 1, 4]]


def test_products_have_eight_rows_and_attention_its_sequences(
    small_oracle: Oracle, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the splits of one long sequence are those of one. What attention leaves of the others is NaN."""
    engine = make_engine(small_oracle)
    graphs, rows, sequences = engine.runner.graphs, [], []
    assert graphs.sizes == [1, 2, 4]

    def choose(original: Any, num_seqs: int, *rest: Any) -> int:
        sequences.append(num_seqs)
        return original(num_seqs, *rest)

    replaced(paged_decode, "choose_splits", choose, monkeypatch)
    layer = graphs.model.model.layers[-1].mlp
    for product in (layer.gate_up_proj, graphs.model.lm_head):
        product.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    graphs.model.lm_head.method = type("Hooked", (type(graphs.model.lm_head.method),), {})()  # not multiplied in place
    block_size = engine.runner.kv_cache.block_size
    graphs.buffers.load_arrays(torch.tensor([[3], [0], [block_size], [1]]), torch.tensor([[1]]))  # a token in block 1
    graphs._forward(1)
    assert rows == [FEWEST_TOKENS, 1]
    assert set(sequences) == {1}
    assert graphs.outputs.hidden[0].isfinite().all()


@pytest.mark.exhaustive
def test_batches_that_shrink_and_grow_leave_each_others_slots_alone(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    """Sequences end one after the other, and another joins: four, two and one are replayed in turn."""
    engine = make_engine(small_oracle)
    for layer in engine.runner.kv_cache.tensors:
        layer.fill_(float("nan"))
    replayed, done, replay = [], {}, engine.runner.graphs.replay
    engine.runner.graphs.replay = lambda inputs, size, params: replayed.append(size) or replay(inputs, size, params)
    requests = [*zip(PROMPTS, GREEDY, strict=True), ([7, 7, 7], GREEDY[0])]
    for number, (prompt, params) in enumerate(requests[:3]):
        engine.add_request(str(number), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[int(output.request_id)] = output.outputs[0].token_ids
                if output.request_id == "1":
                    engine.add_request("3", *requests[3])
    told = serve_on_cpu(small_oracle, requests)
    assert [done[number] for number in range(4)] == [told[number]["outputs"][0]["token_ids"] for number in range(4)]
    assert {1, 2, 4} == set(replayed)


@pytest.mark.exhaustive
def test_tokens_that_would_ask_for_experts_of_their_own_are_not_added(tmp_path, fake_cuda: FakeCuda) -> None:
    engine = make_engine(Oracle(tmp_path, "qwen3_moe"), max_num_seqs=1)
    input_ids, _, metadata = engine.runner.graphs.buffers.inputs(1)
    assert len(input_ids) == metadata.num_decodes == 1


def test_what_is_behind_the_sequences_goes_to_the_null_block() -> None:
    buffers = GraphBuffers(16, max_model_len=30, block_size=4, device=torch.device("cpu"), fewest_tokens=8)
    for size in (16, 8, 7, 1):
        buffers.load_arrays(torch.full((4, size), 9), torch.full((size, 8), 9))
    for size in (8, 7, 1):
        input_ids, positions, metadata = buffers.inputs(size)
        for numbers in (input_ids, positions, metadata.slot_mapping):
            assert numbers.tolist() == [9] * size + [0] * (8 - size)
        assert len(metadata.seq_lens) == len(metadata.decode_order) == metadata.num_decodes == size
        assert len(buffers.gumbel_params(size)[1]) == size
