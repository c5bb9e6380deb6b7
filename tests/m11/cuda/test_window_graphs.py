"""Layers in several groups, each with slots and a block table of its own, in CUDA graphs: no token changes by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.request import Sequence, SequenceData
from folovllm.worker.cuda_graph import GraphBuffers, bytes_of_graphs
from folovllm.worker.input_batch import InputBatch, StepInputs
from folovllm.worker.prompt_shape import PromptShape
from tests.fake_cuda import FakeCuda, fake_cuda_machine
from tests.helpers import make_hf_folder
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import make_engine, waits_of_launches
from tests.m8.support import Prophet, guess_always
from tests.m11.cuda.test_prompt_graphs import fake_cuda, greedy_tokens, replayed, spoil

pytest.importorskip("triton")
__all__ = ["fake_cuda", "replayed"]
WINDOW = 8
SMALL = {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": WINDOW, "use_sliding_window": True}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
MIXED = {**SMALL, "num_hidden_layers": 3, "layer_types": KINDS}  # as Gemma mixes them; three groups
PROMPTS = [[3, 9], [5, 9, 2, 40, 11] * 4, [7, 1, 2, 8]]
TOKENS = 6
"""Of each answer: two sequences begin within the window, one of them leaves it, and one is beyond it from the start."""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("mixed"), "qwen3", **MIXED)


def engine_of(oracle: Oracle, **settings: Any) -> LLMEngine:
    room = {"max_num_batched_tokens": 16, "max_num_seqs": 2, "num_kv_blocks": 60}
    engine = make_engine(oracle, **{**room, **settings})
    spoil(engine)
    return engine


def wanted(oracle: Oracle) -> list[list[int]]:
    return [oracle.greedy(prompt, TOKENS) for prompt in PROMPTS]


@pytest.mark.exhaustive
def test_greedy_tokens_are_hugging_faces(oracle: Oracle, fake_cuda: FakeCuda, replayed: list[Any]) -> None:
    """Prompts whole and in chunks, beside decodes, padded; then two once more, behind what is in the cache."""
    engine = engine_of(oracle)
    assert engine.runner.kv_cache.groups.windows == (None, WINDOW, WINDOW)
    fake_cuda.reset_counts()
    with waits_of_launches(engine, fake_cuda) as waits:
        assert greedy_tokens(engine, PROMPTS, TOKENS) == wanted(oracle)
        assert greedy_tokens(engine, PROMPTS[1:], 2) == [said[:2] for said in wanted(oracle)[1:]]
    assert engine.stats().prefix_cache_hits > 0
    assert any(sum(nums) < size for nums, size in replayed)
    assert any(nums[0] == 1 and nums[-1] > 1 for nums, _ in replayed)
    assert fake_cuda.launches["graph"] > len(replayed)
    assert not {"_paged_prefill", "_paged_decode", "_norm_rotary_kernel"} & fake_cuda.launches.keys()
    assert waits == fake_cuda.compiled == []
    assert_idle(engine)


@pytest.mark.exhaustive
@pytest.mark.parametrize("preemption_mode", ["recompute", "swap"])
def test_preempted_sequences_go_on_as_if_nothing_had_been(
    preemption_mode: str, oracle: Oracle, fake_cuda: FakeCuda, replayed: list[Any]
) -> None:
    engine, prompts = engine_of(oracle, num_kv_blocks=19, preemption_mode=preemption_mode), [[5, 9] * 5, [6, 30] * 5]
    assert greedy_tokens(engine, prompts, TOKENS) == [oracle.greedy(prompt, TOKENS) for prompt in prompts]
    assert engine.stats().preemptions > 0
    assert replayed


@pytest.mark.exhaustive
def test_drafts_are_verified_in_graphs(tmp_path: Path, fake_cuda: FakeCuda, replayed: list[Any]) -> None:
    """As rows of a tile where most are there, else each as a sequence: both are replayed, and some are wrong."""

    class Uneven(Prophet):
        def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
            return super().propose(seqs, counts if drafted else [at for at, _ in enumerate(counts)])

    oracle, drafted = Oracle(tmp_path, "qwen2", max_window_layers=1, **SMALL), list[list[int]]()
    speculative, prompts = {"method": "ngram", "num_speculative_tokens": 3}, PROMPTS[1:]
    engine = engine_of(oracle, speculative_config=speculative)
    assert engine.runner.kv_cache.groups.windows == (None, WINDOW)
    answers = {(tuple(prompt), 0): oracle.greedy(prompt, 14) for prompt in prompts}
    guess_always(engine, Uneven(answers))
    replay = engine.runner.graphs.replay

    def watched(inputs: StepInputs, size: int, params: Any) -> Any:
        drafted.append(inputs.num_new.tolist())
        return replay(inputs, size, params)

    engine.runner.graphs.replay = watched
    fake_cuda.reset_counts()
    assert greedy_tokens(engine, prompts, 10) == [oracle.greedy(prompt, 10) for prompt in prompts]
    assert sum(engine.scheduler.drafts.num_accepted_per_pos) > 2
    assert [1, 2] in drafted
    assert ([4, 4], 8) in replayed
    assert not {"_paged_prefill", "_paged_decode"} & fake_cuda.launches.keys()


@pytest.mark.exhaustive
def test_padding_touches_the_null_block_and_no_other(oracle: Oracle, fake_cuda: FakeCuda) -> None:
    """Of all groups, whose layers share tensors: a block of each has the tokens that were computed, and no more."""
    engine = engine_of(oracle, async_scheduling=False)
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=3))
    for tokens in (3, 4):  # a prompt, then a decode
        engine.step()
        (seq,) = engine.scheduler.running[0].get_seqs()
        (tensor,) = engine.runner.kv_cache.tensors
        written = ~tensor.cpu().isnan().flatten(3).any(-1).any(0)  # [num_blocks, block_size]
        assert set(written.nonzero()[:, 0].tolist()) == {0, *(table[0] for table in seq.tables)}
        for table in seq.tables:
            assert written[table[0]].tolist() == [place < tokens for place in range(4)]
    engine.abort_request("a")


def make_batch(block_tables: list[list[int]]) -> tuple[InputBatch, Sequence]:
    """A sequence of six tokens, five of them computed, with two groups of layers; blocks of 4."""
    first, *further = block_tables
    seq = Sequence("a-0", "a", SequenceData([1, 2, 3, 4, 5], [9]), SamplingParams(), block_ids=first)
    seq.further_tables, seq.num_computed_tokens = further, 5
    batch = InputBatch(4, 16, 4, torch.device("cpu"), num_groups=2)
    batch.add(seq)
    return batch, seq


def test_each_group_has_slots_and_a_table_and_the_null_block_for_padding() -> None:
    """The window of the second group has left its first block."""
    batch, seq = make_batch([[7, 3], [0, 5]])
    buffers = GraphBuffers(4, 16, 4, torch.device("cpu"), fewest_tokens=3, num_groups=2)
    buffers.packed.fill_(99)
    for pad_to, tokens in ((1, 3), (3, 3)):  # a graph of one sequence computes three tokens, too
        inputs = batch.prepare([seq], [1], [], pad_to=pad_to)
        buffers.load(inputs, pad_to, None)
        _, _, metadata = buffers.inputs(pad_to)
        for group, (slot, table) in enumerate([(3 * 4 + 1, [7, 3, 0, 0]), (5 * 4 + 1, [0, 5, 0, 0])]):
            of_step, of_graph = inputs.metadata.of_group(group), metadata.of_group(group)
            assert of_step.slot_mapping.tolist() == [slot] + [0] * (pad_to - 1)
            assert of_graph.slot_mapping.tolist() == [slot] + [0] * (tokens - 1)
            assert of_graph.block_tables.tolist() == [table, *([0] * 4 for _ in range(pad_to - 1))]
            assert of_graph.seq_lens.tolist() == [6] + [1] * (pad_to - 1)
            assert of_graph.slot_mapping.is_contiguous()


def test_what_graphs_read_lies_where_the_next_step_is_written() -> None:
    buffers = GraphBuffers(8, 16, 4, torch.device("cpu"), fewest_tokens=2, num_groups=3)
    for size in (1, 8):
        buffers.clear(size)
        _, _, before = buffers.inputs(size)
        tables = torch.arange(3 * size * 2, dtype=torch.int32).view(3, size, 2)
        buffers.load_arrays(torch.arange(6 * size).view(6, size), tables)
        for group, row in enumerate((2, 4, 5)):
            of_group = before.of_group(group)
            assert of_group.slot_mapping[:size].tolist() == [*range(row * size, (row + 1) * size)]
            assert of_group.block_tables[:, :2].tolist() == tables[group].tolist()


def test_a_step_with_prompts_has_the_slots_of_all_groups() -> None:
    """A decode and a prompt of three tokens, in a graph of six tokens with two decodes, a prompt and the padding."""
    shape = PromptShape(6, num_decodes=2, num_prompts=2)
    tokens = [np.array(each) for each in ([7, 1, 2, 3], [8, 0, 1, 2], [40, 12, 13, 14])]
    further = [np.array([60, 22, 23, 24]), np.array([80, 32, 33, 34])]
    packed = shape.pack([*tokens, np.array([9, 3]), np.array([0])], np.array([1, 4]), 4, further)
    assert packed.shape == (shape.num_words + 2 * 6,)
    tables = torch.arange(3 * 4 * 5, dtype=torch.int32).view(3, 4, 5)
    longer = torch.cat([torch.from_numpy(packed), torch.full((9,), 99)])  # as a larger graph has left it
    _, _, metadata = shape.unpack(longer, tables, 10)
    for group, slots in enumerate([tokens[2], *further]):
        of_group = metadata.of_group(group)
        assert of_group.slot_mapping.tolist() == [*slots, 0, 1]
        assert of_group.block_tables.tolist() == tables[group].tolist()
        assert of_group.seq_lens.tolist() == [9, 0, 3, 2]
        assert (of_group.leading_decodes, of_group.max_query_len) == (2, 6)


def test_what_they_take_is_known_before_there_is_a_cache(tmp_path: Path) -> None:
    """With the tables and slots of all groups, which are as large as those of the first."""
    folder = make_hf_folder(tmp_path, max_position_embeddings=4096, **MIXED)
    with fake_cuda_machine(numbers=False, total_bytes=1 << 30, context_bytes=0, prompt_graphs=True) as machine:
        room = {"max_model_len": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 64, "num_kv_blocks": 4096}
        runner = LLM(str(folder), dtype="float32", device="cuda", skip_tokenizer_init=True, **room).engine.runner
        graphs, groups = runner.graphs, runner.kv_cache.groups
        of_groups = [graphs.buffers.block_tables, graphs.prompts.block_tables]
        kept = [*of_groups, *vars(graphs.outputs).values(), graphs.buffers.packed, graphs.prompts.packed]
        taken = graphs.pool_bytes + graphs.prompts.hidden.nbytes + sum(tensor.nbytes for tensor in kept)
        known = [
            bytes_of_graphs(
                runner.model, type(runner.kv_cache.backend), graphs.sizes, max_model_len=4096, block_size=16,
                dtype=torch.float32, device=machine.devices[0].torch_device, draws=True,
                prompt_shapes=graphs.prompts.shapes, groups=each,
            )
            for each in (groups, None)
        ]  # fmt: skip
    assert taken <= known[0] <= 2 * taken
    assert known[0] - known[1] >= 2 * sum(tables.nbytes for tables in of_groups) / 3
