import numpy as np
import torch

from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.worker.input_batch import InputBatch
from lab_judge import expect, invariant


def make_batch(rows=3):
    return InputBatch(max_num_seqs=rows, max_model_len=8, block_size=8, device=torch.device("cpu"))


def sequence(name, prompt, output=(), num_computed=0, slot=0):
    data = SequenceData(list(prompt), list(output))
    return Sequence(name, name, data, SamplingParams(), block_ids=[slot], num_computed_tokens=num_computed)


@invariant(1)
def test_prompt_and_output_stand_in_the_row():
    batch = make_batch()
    batch.add(sequence("a", prompt=[11, 12, 13], output=[14]))
    expect(batch.token_ids[0, :4].tolist(), [11, 12, 13, 14])
    expect(int(batch.num_tokens[0]), 4)


@invariant(1)
def test_all_of_the_output_does():
    batch = make_batch()
    batch.add(sequence("a", prompt=[11, 12], output=[13, 14, 15]))
    expect(batch.token_ids[0, :5].tolist(), [11, 12, 13, 14, 15])


@invariant(1)
def test_the_cache_is_known_to_the_row():
    batch = make_batch()
    batch.add(sequence("a", prompt=[11, 12, 13], output=[14], num_computed=3, slot=5))
    expect((int(batch.num_computed[0]), batch.block_table[0].tolist()), (3, [5]))


@invariant(1)
def test_the_output_may_be_in_the_cache_too():
    batch = make_batch()
    seq = sequence("a", prompt=[11, 12], output=[13, 14, 15], num_computed=4, slot=5)
    batch.add(seq)
    expect(int(batch.num_computed[0]), 4)
    expect((seq.num_computed_tokens, seq.block_ids, seq.get_len()), (4, [5], 5))  # the sequence is only read


@invariant(2)
def test_each_sequence_has_a_row_of_its_own():
    batch = make_batch()
    batch.add(sequence("a", prompt=[11, 12]))
    batch.add(sequence("b", prompt=[21, 22]))
    expect(("a" in batch, "b" in batch, "c" in batch), (True, True, False))
    expect(batch.token_ids[:2, :2].tolist(), [[11, 12], [21, 22]])


@invariant(3)
def test_who_has_left_is_not_in_the_batch():
    batch = make_batch(rows=2)
    batch.add(sequence("a", prompt=[11, 12]))
    batch.remove("a")
    expect("a" in batch, False)


@invariant(3)
def test_who_comes_next_takes_the_row_that_was_left():
    batch = make_batch(rows=2)
    batch.add(sequence("a", prompt=[11, 12]))
    batch.add(sequence("b", prompt=[21, 22]))
    batch.remove("a")
    batch.add(sequence("c", prompt=[31, 32]))
    expect(batch.token_ids[:, :2].tolist(), [[31, 32], [21, 22]])


@invariant(3)
def test_no_row_is_lost_or_given_twice():
    batch = make_batch(rows=2)
    for turn in range(3):
        batch.add(sequence(f"a{turn}", prompt=[1]))
        batch.add(sequence(f"b{turn}", prompt=[2]))
        batch.remove(f"a{turn}")
        batch.remove(f"b{turn}")
    expect(sorted(batch._free_rows), [0, 1])


@invariant(3)
def test_who_has_no_row_can_leave():
    batch = make_batch(rows=2)
    batch.remove("never came")
    expect(sorted(batch._free_rows), [0, 1])


@invariant(4)
def test_nothing_of_the_former_owner_counts():
    batch = make_batch(rows=1)
    batch.add(sequence("old", prompt=[11, 12, 13, 14, 15], num_computed=5, slot=4))
    batch.remove("old")
    batch.add(sequence("new", prompt=[21, 22], num_computed=0, slot=0))
    expect((int(batch.num_tokens[0]), int(batch.num_computed[0]), int(batch.block_table[0, 0])), (2, 0, 0))


@invariant(5)
def test_a_prompt_counts_with_all_its_tokens():
    batch = make_batch()
    a, b = sequence("a", prompt=[11, 12, 13]), sequence("b", prompt=[21, 22], output=[23], num_computed=2)
    batch.add(a)
    batch.add(b)
    batch.advance(batch.prepare([a, b], [3, 1]), np.array([50, 60]))
    expect(batch.num_computed[:2].tolist(), [3, 3])


@invariant(5)
def test_the_token_stands_behind_the_last():
    batch = make_batch()
    a = sequence("a", prompt=[11, 12, 13])
    batch.add(a)
    batch.advance(batch.prepare([a], [3]), np.array([50]))
    expect((batch.token_ids[0, :4].tolist(), int(batch.num_tokens[0])), ([11, 12, 13, 50], 4))


@invariant(5)
def test_each_token_stands_behind_its_own_row():
    batch = make_batch()
    a, b = sequence("a", prompt=[11, 12, 13]), sequence("b", prompt=[21])
    batch.add(a)
    batch.add(b)
    batch.advance(batch.prepare([a, b], [3, 1]), np.array([50, 60]))
    expect(batch.token_ids[:2, :4].tolist(), [[11, 12, 13, 50], [21, 60, 0, 0]])


@invariant(5)
def test_two_steps_in_a_row():
    batch = make_batch()
    a = sequence("a", prompt=[11, 12, 13])
    batch.add(a)
    batch.advance(batch.prepare([a], [3]), np.array([50]))
    batch.advance(batch.prepare([a], [1]), np.array([51]))
    expect(batch.token_ids[0, :5].tolist(), [11, 12, 13, 50, 51])
    expect((int(batch.num_tokens[0]), int(batch.num_computed[0])), (5, 4))


@invariant(5)
def test_only_what_was_computed_is_in_the_cache():
    batch = make_batch()
    a = sequence("a", prompt=[11, 12, 13])
    batch.add(a)
    batch.advance(batch.prepare([a], [2]), np.array([50]))  # two of its three tokens
    expect((int(batch.num_computed[0]), batch.token_ids[0, :4].tolist()), (2, [11, 12, 13, 50]))


@invariant(5)
def test_the_step_is_only_read():
    batch = make_batch()
    a = sequence("a", prompt=[11, 12, 13], output=[14], num_computed=3)
    batch.add(a)
    inputs = batch.prepare([a], [1])
    batch.advance(inputs, np.array([50]))
    expect((inputs.num_new.tolist(), inputs.rows.tolist()), ([1], [0]))


@invariant(6)
def test_tokens_find_their_rows_in_any_order():
    batch = make_batch()
    a, b, c = (sequence(name, prompt=[1]) for name in "abc")
    for seq in (a, b, c):
        batch.add(seq)
    batch.advance(batch.prepare([c, a], [1, 1]), np.array([53, 51]))  # b has no part in this step
    expect(batch.token_ids[:, :2].tolist(), [[1, 51], [1, 0], [1, 53]])
    expect(batch.num_tokens.tolist(), [2, 1, 2])
    expect(batch.num_computed.tolist(), [1, 0, 1])
