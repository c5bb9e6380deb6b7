"""Steps with prompts in CUDA graphs, on the stand-in for a GPU: no token changes by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.splits import choose_splits
from folovllm.engine.builder import engine_core
from folovllm.worker.cuda_graph import bytes_of_graphs, capture_sizes
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.prompt_graph import PromptGraphs
from folovllm.worker.prompt_shape import MAX_PROMPTS, SIZES, PromptShape, draft_shapes, prompt_shapes
from tests.fake_cuda import FakeCuda, fake_cuda_machine
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import PROMPTS, make_engine, serve, waits_of_launches
from tests.m4.test_cuda_memory import NUM_SEQS, SHARE, TOTAL_BYTES, folder
from tests.m4.test_cuda_memory import make_engine as make_shallow_engine

pytest.importorskip("triton")
__all__ = ["folder"]


@pytest.fixture
def fake_cuda() -> Iterator[FakeCuda]:
    """With graphs for steps with prompts."""
    with fake_cuda_machine(total_bytes=2 << 30, prompt_graphs=True) as machine:
        yield machine


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """Of each replay, how many tokens each sequence had, and how many the graph has."""
    found: list[tuple[list[int], int]] = []
    replay = PromptGraphs.replay

    def watched(self: PromptGraphs, inputs: Any, shape: PromptShape) -> Any:
        found.append((inputs.num_new.tolist(), shape.num_tokens))
        return replay(self, inputs, shape)

    monkeypatch.setattr(PromptGraphs, "replay", watched)
    return found


def greedy_tokens(engine: LLMEngine, prompts: list[list[int]], length: int) -> list[list[int]]:
    asked = [(prompt, SamplingParams(temperature=0, max_tokens=length)) for prompt in prompts]
    return [told["outputs"][0]["token_ids"] for told in serve(engine, asked)]


def spoil(engine: LLMEngine) -> None:
    """Nothing in the cache is good that nobody has written."""
    for tensor in engine.runner.kv_cache.tensors:
        tensor.fill_(float("nan"))


def test_decodes_prompts_and_padding_share_an_array() -> None:
    """Two decodes, of 9 and 5 tokens, and a prompt of three tokens; in a graph of 8 tokens with 4 decodes, 2 prompts
    and the padding, which has 3 tokens."""
    shape = PromptShape(8, num_decodes=4, num_prompts=3)
    tokens = [np.array(each) for each in ([7, 8, 1, 2, 3], [8, 4, 0, 1, 2], [40, 41, 12, 13, 14])]
    packed = shape.pack([*tokens, np.array([9, 5, 3]), np.array([0, 1])], np.array([1, 2, 5]), block_size=2)
    assert packed.shape == (shape.num_words,)
    tables = torch.zeros(7, 5, dtype=torch.int32)
    input_ids, positions, metadata = shape.unpack(torch.from_numpy(packed), tables[None], 10)
    assert input_ids.tolist() == [7, 8, 1, 2, 3, 0, 0, 0]
    assert positions.tolist() == [8, 4, 0, 1, 2, 0, 0, 0]
    assert metadata.slot_mapping.tolist() == [40, 41, 12, 13, 14, 0, 1, 0]  # the null block has two slots
    assert metadata.seq_lens.tolist() == [9, 5, 0, 0, 3, 0, 3]
    assert metadata.query_start_loc.tolist() == [0, 1, 2, 3, 2, 5, 5, 8]
    assert metadata.decode_order is not None
    assert metadata.decode_order.tolist() == [0, 1, 2, 3]
    assert (metadata.leading_decodes, metadata.max_query_len) == (4, 8)


def test_padding_of_drafts_belongs_to_no_sequence() -> None:
    """A sequence with two draft tokens and one with none, where three sequences may have three."""
    shape = draft_shapes(3, max_num_seqs=3)[-1]
    assert (shape.num_tokens, shape.num_seqs) == (12, 3)  # one more would take splits from them
    tokens = [np.array(each) for each in ([1, 7, 8, 9], [0, 4, 5, 6], [20, 14, 15, 16])]
    for decodes in (0, 1):  # a sequence in front with one token is no decode here
        order = np.arange(decodes)
        packed = shape.pack([*tokens, np.array([1, 7]), order], np.array([1, 4]), block_size=2)
        _, _, metadata = shape.unpack(torch.from_numpy(packed), torch.zeros(1, 3, 5, dtype=torch.int32), 10)
        assert metadata.slot_mapping.tolist() == [20, 14, 15, 16, 0, 1, 0, 1, 0, 1, 0, 1]
        assert metadata.seq_lens.tolist() == [1, 7, 0]
        assert metadata.query_start_loc.tolist() == [0, 1, 4, 4]
        assert (metadata.leading_decodes, metadata.max_query_len) == (0, 4)


def test_which_graph_drafts_take() -> None:
    graphs = PromptGraphs.__new__(PromptGraphs)
    graphs.shapes = sorted(prompt_shapes(64, 40) + draft_shapes(3, 5, fewest=8), key=lambda shape: shape.num_tokens)
    assert [shape.num_tokens for shape in graphs.shapes if shape.draft_len] == [8, 8, 16, 20]
    found = [graphs.shape_for_drafts(nums) for nums in ([2], [3, 1], [2, 1, 4, 3], [1, 1, 1, 4, 3])]
    assert [shape and (shape.num_tokens, shape.num_seqs) for shape in found] == [(8, 1), (8, 2), (16, 4), (20, 5)]
    assert graphs.shape_for_drafts([1, 1, 1, 4]) is None  # 9 of 16 tokens would be padding
    assert graphs.shape_for_drafts([4] * 6) is None
    shape = graphs.shape_for([4])
    assert shape is not None
    assert not shape.draft_len


def test_sizes_end_with_the_largest_step() -> None:
    assert list(dict.fromkeys(shape.num_tokens for shape in prompt_shapes(8192, 256))) == [*SIZES]
    rooms = {16: (0, 8, 16), 32: (0, 8, 32), 64: (0, 8, 40), 100: (0, 8, 40)}
    found = [(each.num_tokens, each.num_decodes) for each in prompt_shapes(100, 40)]
    assert found == [(size, room) for size, each in rooms.items() for room in each]
    assert [shape.num_decodes for shape in prompt_shapes(32, 8)] == [0, 8, 0, 8]


def test_which_graph_a_step_takes() -> None:
    graphs = PromptGraphs.__new__(PromptGraphs)
    graphs.shapes = prompt_shapes(64, 40)
    found = [graphs.shape_for(nums) for nums in ([16], [1] * 10 + [7], [2] * MAX_PROMPTS, [1, 63], [1] * 9 + [7])]
    rooms = [shape and (shape.num_tokens, shape.num_decodes) for shape in found]
    assert rooms == [(16, 0), (32, 32), (32, 0), (64, 8), (16, 16)]
    assert graphs.shape_for([65]) is None
    assert graphs.shape_for([2] * (MAX_PROMPTS + 1)) is None
    assert graphs.shape_for([2] + [1] * MAX_PROMPTS) is None  # only those in front are decodes to the kernel


def test_a_long_decode_beside_a_prompt_is_split() -> None:
    """As attention divides it where there is room for 40,960 tokens and a tile has 64."""
    graphs = PromptGraphs.__new__(PromptGraphs)
    graphs.shapes = prompt_shapes(8192, 256)
    for decodes, splits in ((1, 6), (8, 6), (200, 1)):
        shape = graphs.shape_for([1] * decodes + [500])
        assert shape is not None
        assert choose_splits(shape.num_decodes, 8, 40_960, 64) == splits


@pytest.mark.exhaustive
def test_greedy_tokens_are_hugging_faces(small_oracle: Oracle, fake_cuda: FakeCuda, replayed: list[Any]) -> None:
    """Prompts whole and in chunks, beside decodes, and behind a prefix that is in the cache."""
    prompts = [*PROMPTS, [*PROMPTS[2], 6, 1]]
    engine = make_engine(small_oracle, max_num_batched_tokens=20)
    spoil(engine)
    fake_cuda.reset_counts()
    with waits_of_launches(engine, fake_cuda) as waits:
        tokens = greedy_tokens(engine, prompts, 4)
    assert tokens == [small_oracle.greedy(prompt, 4) for prompt in prompts]
    assert replayed == [([3, 8, 6, 3], 20), ([1, 1, 1, 7], 16), ([3], 16)]
    assert not {"_paged_prefill", "_paged_decode", "_norm_rotary_kernel"} & fake_cuda.launches.keys()
    assert waits == fake_cuda.compiled == []
    assert_idle(engine)


@pytest.mark.exhaustive
def test_preempted_sequences_go_on_as_if_nothing_had_been(
    small_oracle: Oracle, fake_cuda: FakeCuda, replayed: list[Any]
) -> None:
    engine = make_engine(small_oracle, max_num_batched_tokens=20, num_kv_blocks=10, preemption_mode="recompute")
    spoil(engine)
    assert greedy_tokens(engine, PROMPTS, 10) == [small_oracle.greedy(prompt, 10) for prompt in PROMPTS]
    assert engine.stats().preemptions > 1
    assert [nums for nums, _ in replayed] == [[3, 8, 6, 3], [1, 1, 1, 7], [9, 5]]  # the last two once more


@pytest.mark.exhaustive
def test_every_kind_of_request_says_what_it_says_without_graphs(
    small_oracle: Oracle, fake_cuda: FakeCuda, replayed: list[Any]
) -> None:
    kinds = [
        SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1),
        SamplingParams(seed=3, top_k=20, max_tokens=3),
        SamplingParams(n=2, temperature=1.0, seed=6, max_tokens=3),
        SamplingParams(temperature=0, max_tokens=3, repetition_penalty=1.3),
    ]
    asked = list(zip(PROMPTS, kinds, strict=True))
    told = serve(make_engine(small_oracle, max_num_batched_tokens=20), asked)
    assert replayed
    assert told == serve(make_engine(small_oracle, max_num_batched_tokens=20, enforce_eager=True), asked)


@pytest.mark.exhaustive
def test_padding_touches_the_null_block_and_no_other(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    engine = make_engine(small_oracle, max_num_batched_tokens=20, async_scheduling=False)
    spoil(engine)
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=3))
    engine.step()
    (seq,) = engine.scheduler.running[0].get_seqs()
    for layer in engine.runner.kv_cache.tensors:
        written = ~layer.cpu().isnan().flatten(3).any(-1).any(0)  # [num_blocks, block_size]
        assert written.nonzero()[:, 0].unique().tolist() == [0, seq.block_ids[0]]
        assert written[seq.block_ids[0]].tolist() == [True, True, True, False]
    engine.abort_request("a")


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", [{"batch_invariant": True}, {"enforce_eager": True}], ids=str)
def test_without_such_graphs_prompts_are_computed_as_ever(
    small_oracle: Oracle, fake_cuda: FakeCuda, replayed: list[Any], settings: dict[str, Any]
) -> None:
    engine = make_engine(small_oracle, max_num_batched_tokens=20, **settings)
    fake_cuda.reset_counts()
    assert greedy_tokens(engine, PROMPTS[:1], 2) == [small_oracle.greedy(PROMPTS[0], 2)]
    assert not replayed
    assert fake_cuda.launches["_paged_prefill"] + fake_cuda.launches["_paged_decode"]  # a short prompt is a decode's


CODES = [{"quantization": "w4a16"}, {"quantization": "w8a8"}, {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "int8"}]


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", CODES, ids=str)
def test_weights_and_caches_of_fewer_bits_have_such_graphs_too(
    small_oracle: Oracle, fake_cuda: FakeCuda, replayed: list[Any], settings: dict[str, Any]
) -> None:
    """A padding row changes no other: each has scales of its own."""
    settings = {"max_num_batched_tokens": 20, "max_num_seqs": 2, **settings}
    tokens = greedy_tokens(make_engine(small_oracle, **settings), PROMPTS[:2], 3)
    assert len(replayed) >= 1
    assert tokens == greedy_tokens(make_engine(small_oracle, **settings, enforce_eager=True), PROMPTS[:2], 3)


@pytest.fixture
def shapes_only() -> Iterator[FakeCuda]:
    with fake_cuda_machine(numbers=False, total_bytes=TOTAL_BYTES, prompt_graphs=True) as machine:
        yield machine


def test_their_memory_is_within_the_share(folder: Path, shapes_only: FakeCuda) -> None:
    """What they take is known before there is a cache; and a step with prompts takes no more."""
    engine, device = make_shallow_engine(folder), shapes_only.devices[0]
    graphs = engine.runner.graphs
    assert graphs is not None
    assert list(graphs.prompts.graph_bytes) == prompt_shapes(4096, NUM_SEQS)[::-1]
    kept = [*vars(graphs.outputs).values(), graphs.buffers.packed, graphs.buffers.block_tables]
    kept += [graphs.prompts.packed, graphs.prompts.block_tables, graphs.prompts.hidden]
    taken = graphs.pool_bytes + sum(tensor.nbytes for tensor in kept)
    device.memory.peak = device.memory.live
    for number in range(NUM_SEQS):
        engine.add_request(str(number), [5] * (number + 1), SamplingParams(max_tokens=3))
    while engine.has_unfinished_requests():
        engine.step()
    pools = sum(pool.peak for pool in device.pools)
    assert shapes_only.context_bytes + pools + device.memory.peak <= SHARE * TOTAL_BYTES
    foretold = bytes_of_graphs(
        engine.runner.model, type(engine.runner.kv_cache.backend), capture_sizes(NUM_SEQS), max_model_len=4096,
        block_size=16, dtype=torch.bfloat16, device=device.torch_device, draws=True,
        prompt_shapes=prompt_shapes(4096, NUM_SEQS),
    )  # fmt: skip
    assert taken <= foretold <= 2 * taken


@pytest.mark.exhaustive
def test_what_a_drafts_graphs_take_is_kept_back_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache is as large as memory allows. The draft's own prompts are among its graphs."""
    num_bytes, more, sizes = engine_core.bytes_over_null_block, [0, 10 << 20], []
    speculative = {"method": "draft_model", "num_speculative_tokens": 3}
    with fake_cuda_machine(numbers=False, total_bytes=120 << 20, context_bytes=0, prompt_graphs=True) as machine:

        def watched(model: Any, backend: Any, record: Callable[[], Any], **where: Any) -> int:
            said = num_bytes(model, backend, record, **where)
            before = machine.devices[0].bytes_in_use
            KVCache(model, TritonBackend, num_blocks=1, **where)
            made = record()
            assert made.prompts.shapes
            assert said * 0.9 < machine.devices[0].bytes_in_use - before <= said + (1 << 20)  # and the null block
            return said + more[len(sizes)]

        monkeypatch.setattr(engine_core, "bytes_over_null_block", watched)
        for _ in more:
            llm = LLM(
                dtype="float32", device="cuda", gpu_memory_utilization=SHARE, speculative_config=speculative,
                max_num_batched_tokens=512, max_num_seqs=64,
            )  # fmt: skip
            sizes.append(llm.engine.core.cache_size)
            del llm
    assert sizes[0].num_blocks - sizes[1].num_blocks == pytest.approx(more[1] / sizes[0].block_bytes, abs=2)
