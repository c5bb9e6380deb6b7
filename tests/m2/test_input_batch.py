"""The persistent batch gives each step the inputs that a slow reference builds token by token."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.worker.input_batch import InputBatch, StepInputs
from tests.m2.batch_support import advance, last_tokens, prepare

ROWS, MAX_MODEL_LEN, BLOCK = 4, 24, 4
BLOCKS_PER_ROW = MAX_MODEL_LEN // BLOCK
PARAMS = SamplingParams()


@dataclass
class Reference:
    """What a step's inputs must be, in plain Python."""

    input_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    seq_lens: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    def add(self, seq: Sequence, num_tokens: int) -> None:
        tokens = seq.get_token_ids()
        for position in range(seq.num_computed_tokens, seq.num_computed_tokens + num_tokens):
            self.input_ids.append(tokens[position])
            self.positions.append(position)
            self.slots.append(seq.block_ids[position // BLOCK] * BLOCK + position % BLOCK)
        self.starts.append(len(self.input_ids))
        self.seq_lens.append(seq.num_computed_tokens + num_tokens)
        self.last.append(len(self.input_ids) - 1)


def assert_equal(inputs: StepInputs, want: Reference, seqs: list[Sequence]) -> None:
    meta = inputs.metadata
    assert inputs.input_ids.tolist() == want.input_ids
    assert inputs.positions.tolist() == want.positions
    assert meta.slot_mapping.tolist() == want.slots
    assert meta.query_start_loc.tolist() == want.starts
    assert meta.seq_lens.tolist() == want.seq_lens
    assert meta.max_seq_len == max(want.seq_lens)
    assert meta.max_query_len == max(end - start for start, end in zip(want.starts, want.starts[1:], strict=False))
    assert last_tokens(inputs) == want.last
    for table, seq, length in zip(meta.block_tables.tolist(), seqs, want.seq_lens, strict=True):
        num_blocks = -(-length // BLOCK)
        assert table[:num_blocks] == seq.block_ids[:num_blocks]
    assert {t.dtype for t in (inputs.input_ids, inputs.positions, meta.slot_mapping)} == {torch.int64}
    assert {t.dtype for t in (meta.query_start_loc, meta.seq_lens, meta.block_tables)} == {torch.int32}


def make_seq(name: str, prompt: list[int], output: list[int], computed: int, block_ids: list[int]) -> Sequence:
    return Sequence(
        f"{name}-0", name, SequenceData(prompt, output), PARAMS, block_ids=block_ids, num_computed_tokens=computed
    )


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_any_history_of_joins_and_leaves_gives_the_inputs_of_the_reference(seed, num_steps):
    rng = random.Random(seed)  # hypothesis' own would record each of a thousand draws
    batch = InputBatch(ROWS, MAX_MODEL_LEN, BLOCK, torch.device("cpu"))
    live: list[Sequence] = []
    for step in range(num_steps):
        for seq in [seq for seq in live if seq.get_len() == MAX_MODEL_LEN or rng.random() < 0.2]:
            live.remove(seq)
            batch.remove(seq.seq_id)
        while len(live) < ROWS and (not live or rng.random() < 0.5):
            length = rng.randrange(1, MAX_MODEL_LEN)
            token_ids, cut = [rng.randrange(1000) for _ in range(length)], rng.randrange(1, length + 1)
            computed = rng.choice([0, rng.randrange(length)])  # a row may begin in the middle of its sequence
            blocks = rng.sample(range(100), BLOCKS_PER_ROW)
            live.append(make_seq(f"{step}.{len(live)}", token_ids[:cut], token_ids[cut:], computed, blocks))
            batch.add(live[-1])
        seqs = rng.sample(live, rng.randrange(1, len(live) + 1))
        counts = [seq.get_len() - seq.num_computed_tokens for seq in seqs]
        want = Reference()
        for seq, count in zip(seqs, counts, strict=True):
            want.add(seq, count)
        inputs = prepare(batch, seqs, counts)
        assert_equal(inputs, want, seqs)
        drawn = [rng.randrange(1000) for _ in seqs]
        advance(batch, inputs, seqs, drawn)
        for seq, count, token_id in zip(seqs, counts, drawn, strict=True):
            seq.num_computed_tokens += count
            seq.add_token_id(token_id)


def test_a_prompt_beside_a_decode_step_by_hand():
    batch = InputBatch(ROWS, MAX_MODEL_LEN, BLOCK, torch.device("cpu"))
    prefill = make_seq("a", [5, 6, 7], [], 0, [9, 0])
    decode = make_seq("b", [1, 2, 3, 4], [8], 4, [3, 7])
    for seq in (prefill, decode):
        batch.add(seq)
    inputs = prepare(batch, [prefill, decode], [3, 1])
    assert inputs.input_ids.tolist() == [5, 6, 7, 8]
    assert inputs.positions.tolist() == [0, 1, 2, 4]  # the newest token stands at position 4, not 5
    assert inputs.metadata.slot_mapping.tolist() == [36, 37, 38, 28]  # 9 * 4 + 0, 1, 2 and 7 * 4 + 0
    assert inputs.metadata.query_start_loc.tolist() == [0, 3, 4]
    assert inputs.metadata.seq_lens.tolist() == [3, 5]
    assert last_tokens(inputs) == [2, 3]


def test_a_row_is_free_again_and_keeps_nothing_of_who_had_it():
    batch = InputBatch(1, MAX_MODEL_LEN, BLOCK, torch.device("cpu"))
    long = make_seq("long", list(range(20)), [], 0, [5, 6, 7, 8, 9])
    batch.add(long)
    advance(batch, prepare(batch, [long], [20]), [long], [99])
    batch.remove("long-0")
    batch.remove("long-0")  # twice is no error
    assert "long-0" not in batch
    short = make_seq("short", [3, 4], [], 0, [1])
    batch.add(short)
    inputs = prepare(batch, [short], [2])
    assert (inputs.input_ids.tolist(), inputs.positions.tolist()) == ([3, 4], [0, 1])
    assert inputs.metadata.slot_mapping.tolist() == [4, 5]


def test_sequences_that_come_back_to_other_rows_are_found_there():
    batch = InputBatch(2, MAX_MODEL_LEN, BLOCK, torch.device("cpu"))
    seqs = [make_seq(name, [token], [], 0, [1]) for name, token in (("a", 5), ("b", 6))]
    rows = []
    for order in (seqs, seqs[::-1]):
        for seq in order:
            batch.add(seq)
        inputs = prepare(batch, seqs, [1, 1])
        assert inputs.input_ids.tolist() == [5, 6]
        rows.append(inputs.rows.tolist())
        for seq in seqs[::-1]:
            batch.remove(seq.seq_id)
    assert rows[0] == rows[1][::-1]


def test_a_cleared_batch_has_all_its_rows():
    batch = InputBatch(2, MAX_MODEL_LEN, BLOCK, torch.device("cpu"))
    seqs = [make_seq(name, [1], [], 0, [0]) for name in "ab"]
    for _ in range(2):
        for seq in seqs:
            assert seq.seq_id not in batch
            batch.add(seq)
        batch.clear()
