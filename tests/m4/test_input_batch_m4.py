"""The batch when tokens are on their way: what the host lacks, the device puts in; and steps that are padded."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.core.scheduler_output import UNKNOWN
from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.worker.input_batch import Expected, InputBatch, StepInputs

ROWS, MAX_MODEL_LEN, BLOCK = 6, 32, 4


def make_batch() -> InputBatch:
    return InputBatch(ROWS, MAX_MODEL_LEN, BLOCK, torch.device("cpu"))


def make_seq(name: str, prompt: list[int], output: list[int], computed: int) -> Sequence:
    blocks = [10 * (1 + ord(name[0]) % 8) + i for i in range(MAX_MODEL_LEN // BLOCK)]
    data = SequenceData(prompt, output)
    return Sequence(f"{name}-0", name, data, SamplingParams(), block_ids=blocks, num_computed_tokens=computed)


def draw(batch: InputBatch, inputs: StepInputs, seqs: list[Sequence], tokens: list[int]) -> Expected:
    """As the runner does it: the tokens are on the device at once, and with the host later."""
    expected = batch.advance(inputs, seqs)
    batch.last_tokens[inputs.drawn_rows] = torch.tensor(tokens)
    for seq in seqs:
        seq.num_computed_tokens = seq.get_len()
        seq.data.output_token_ids.append(UNKNOWN)
    return expected


def arrive(batch: InputBatch, expected: Expected, seqs: list[Sequence], tokens: list[int]) -> None:
    batch.fill(expected, np.array(tokens))
    for seq, token in zip(seqs, tokens, strict=True):
        place = seq.data.output_token_ids.index(UNKNOWN)
        seq.data.output_token_ids[place] = token


def test_decodes_are_said_in_the_order_of_their_lengths() -> None:
    """The longest first. Padding, of one token, comes last; prefills behind the decodes have no part in it."""
    batch = make_batch()
    seqs = [make_seq("a", [5] * 4, [6], 4), make_seq("b", [1] * 9, [8], 9), make_seq("c", [1] * 6, [8], 6)]
    for seq in seqs:
        batch.add(seq)
    assert batch.prepare(seqs, [1, 1, 1], [], pad_to=5).metadata.decode_order.tolist() == [1, 2, 0, 3, 4]
    newcomer = make_seq("d", [5] * 20, [], 0)
    batch.add(newcomer)
    metadata = batch.prepare([*seqs, newcomer], [1, 1, 1, 20], []).metadata
    assert metadata.decode_order.tolist() == [1, 2, 0]
    assert metadata.num_decodes == 3


def test_a_token_that_only_the_device_knows_is_in_the_next_steps_inputs() -> None:
    batch = make_batch()
    seqs = [make_seq("a", [5, 6, 7], [], 0), make_seq("b", [1, 2], [8], 2)]
    for seq in seqs:
        batch.add(seq)
    first = draw(batch, batch.prepare(seqs, [3, 1], []), seqs, [31, 32])
    inputs = batch.prepare(seqs, [1, 1], [])
    assert inputs.input_ids.tolist() == [31, 32]
    assert inputs.positions.tolist() == [3, 3]
    assert inputs.metadata.seq_lens.tolist() == [4, 4]
    second = draw(batch, inputs, seqs, [41, 42])
    batch.fill(first, np.array([31, 32]))  # comes when the step after it has been launched
    assert batch.prepare(seqs, [1, 1], []).input_ids.tolist() == [41, 42]
    batch.fill(second, np.array([41, 42]))
    assert batch.prepare(seqs, [1, 1], []).input_ids.tolist() == [41, 42]


def test_a_token_that_comes_late_is_not_written_into_a_row_that_has_changed_hands() -> None:
    batch = make_batch()
    gone = make_seq("a", [5, 6], [], 0)
    batch.add(gone)
    expected = draw(batch, batch.prepare([gone], [2], []), [gone], [33])
    batch.remove(gone.seq_id)
    heir = make_seq("a", [1, 2, 3, 4], [], 0)  # of the same name, in the same row
    batch.add(heir)
    batch.fill(expected, np.array([33]))
    inputs = batch.prepare([heir], [4], [])
    assert inputs.input_ids.tolist() == [1, 2, 3, 4]
    assert inputs.draws.tolist() == [0]


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_late_tokens_give_the_inputs_that_early_ones_give(seed: int) -> None:
    """Whatever joins and leaves: two batches, of which one is told each token a step later, prepare the same."""
    rng = random.Random(seed)
    early, late = make_batch(), make_batch()
    live: list[Sequence] = []  # as the late one knows them
    waiting: tuple[Expected, list[Sequence], list[int]] | None = None
    for step in range(12):
        for seq in [seq for seq in live if rng.random() < 0.15 or seq.get_len() + 1 >= MAX_MODEL_LEN]:
            live.remove(seq)
            early.remove(seq.seq_id)
            late.remove(seq.seq_id)
        while len(live) < ROWS and (not live or rng.random() < 0.4):
            seq = make_seq(f"{step}{len(live)}", [rng.randrange(100) for _ in range(rng.randrange(1, 9))], [], 0)
            live.append(seq)
            early.add(seq)
            late.add(seq)
        seqs = rng.sample(live, rng.randrange(1, len(live) + 1))
        counts = [seq.get_len() - seq.num_computed_tokens for seq in seqs]
        one, other = early.prepare(seqs, counts, []), late.prepare(seqs, counts, [])
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.positions.tolist() == other.positions.tolist()
        assert one.draws.tolist() == other.draws.tolist()
        assert one.metadata.slot_mapping.tolist() == other.metadata.slot_mapping.tolist()
        drawn = [rng.randrange(100, 200) for _ in seqs]
        early.fill(early.advance(one, seqs), np.array(drawn))
        expected = draw(late, other, seqs, drawn)
        if waiting is not None:
            arrive(late, *waiting)
        waiting = expected, seqs, drawn


@pytest.mark.parametrize("size", [3, 4, 8])
def test_padding_reads_and_writes_the_null_block(size: int) -> None:
    batch = make_batch()
    seqs = [make_seq(name, [1, 2, 3, 4, 5], [9], 5) for name in "abc"]
    for seq in seqs:
        batch.add(seq)
    plain, padded = batch.prepare(seqs, [1] * 3, []), batch.prepare(seqs, [1] * 3, [], pad_to=size)
    missing = size - 3
    assert padded.input_ids.tolist() == [9] * 3 + [0] * missing
    assert padded.positions.tolist() == [5] * 3 + [0] * missing
    meta = padded.metadata
    assert meta.slot_mapping.tolist() == plain.metadata.slot_mapping.tolist() + [0] * missing
    assert meta.seq_lens.tolist() == [6] * 3 + [1] * missing  # a sequence of none would divide by zero
    assert meta.query_start_loc.tolist() == list(range(size + 1))
    assert meta.block_tables.tolist() == plain.metadata.block_tables.tolist() + [[0, 0]] * missing
    assert (meta.num_decodes, meta.max_query_len) == (size, 1)
    assert {tensor.dtype for tensor in (meta.seq_lens, meta.block_tables, meta.query_start_loc)} == {torch.int32}
    assert {tensor.dtype for tensor in (padded.input_ids, padded.positions, meta.slot_mapping)} == {torch.int64}
    # Who draws, and what is advanced, are the three.
    assert padded.draws.tolist() == [0, 1, 2]
    batch.fill(batch.advance(padded, seqs), np.array([7, 8, 9]))
    assert batch.prepare(seqs, [1] * 3, []).input_ids.tolist() == [7, 8, 9]


def test_the_decodes_at_the_front_are_counted() -> None:
    batch = make_batch()
    decodes = [make_seq(name, [1, 2], [9], 2) for name in "ab"]
    prompt, single = make_seq("c", [1, 2, 3], [], 0), make_seq("d", [4], [], 0)
    for seq in [*decodes, prompt, single]:
        batch.add(seq)
    assert batch.prepare(decodes, [1, 1], []).metadata.num_decodes == 2
    assert batch.prepare([*decodes, prompt], [1, 1, 3], []).metadata.num_decodes == 2
    assert batch.prepare([*decodes, prompt, single], [1, 1, 3, 1], []).metadata.num_decodes == 2
    assert batch.prepare([prompt, *decodes], [3, 1, 1], []).metadata.num_decodes == 0
    assert batch.prepare([*decodes, single], [1, 1, 1], []).metadata.num_decodes == 3
