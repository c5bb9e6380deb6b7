import torch

from folovllm.pooling_params import PoolerConfig, PoolingParams
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from folovllm.worker.pooler import Pooler
from lab_judge import expect, invariant


def pooler():
    return Pooler(PoolerConfig("embed", "MEAN", size=2), None)


def seq(name="r", length=6):
    request = Request(name, None, [1] * length, SamplingParams(), pooling_params=PoolingParams())
    return request.get_seqs()[0]


def rows(*values, dtype=torch.float32):
    return torch.tensor([[value, -value] for value in values], dtype=dtype)


@invariant(1)
def test_the_first_chunk_is_its_own_sum():
    total = pooler().add(seq(), rows(1.0, 2.0))
    expect((total.tolist(), total.dtype), ([3.0, -3.0], torch.float32))


@invariant(1)
def test_a_later_chunk_is_added():
    made, one = pooler(), seq()
    made.add(one, rows(1.0, 2.0))
    one.num_computed_tokens = 2
    made.add(one, rows(4.0))
    one.num_computed_tokens = 3
    expect(made.add(one, rows(8.0, 16.0, 32.0)).tolist(), [63.0, -63.0])


@invariant(1)
def test_it_is_added_up_in_float32():
    made, one = pooler(), seq(length=600)
    made.add(one, rows(*[1.0] * 299, dtype=torch.bfloat16))
    one.num_computed_tokens = 299
    total = made.add(one, rows(*[1.0] * 258, dtype=torch.bfloat16))
    expect((total.tolist(), total.dtype), ([557.0, -557.0], torch.float32))


@invariant(2)
def test_each_sequence_has_its_own():
    made, one, other = pooler(), seq("a"), seq("b")
    made.add(one, rows(1.0))
    made.add(other, rows(10.0))
    one.num_computed_tokens = other.num_computed_tokens = 1
    expect([made.add(each, rows(2.0)).tolist()[0] for each in (one, other)], [3.0, 12.0])


@invariant(2)
def test_what_was_returned_stays_as_it_was():
    made, one, chunk = pooler(), seq(), rows(2.0)
    first = made.add(one, rows(1.0))
    one.num_computed_tokens = 1
    made.add(one, chunk)
    expect((first.tolist(), chunk.tolist()), ([1.0, -1.0], [[2.0, -2.0]]))


@invariant(3)
def test_a_chunk_at_the_beginning_begins_anew():
    made, one = pooler(), seq()
    made.add(one, rows(1.0, 2.0, 4.0, 8.0))
    expect(made.add(one, rows(1.0, 2.0, 4.0)).tolist(), [7.0, -7.0])
    one.num_computed_tokens = 3
    expect(made.add(one, rows(8.0, 16.0, 32.0)).tolist(), [63.0, -63.0])


@invariant(4)
def test_the_mean_is_over_the_whole_prompt():
    made, one = pooler(), seq()
    made.add(one, rows(1.0, 2.0, 4.0, 8.0))
    one.num_computed_tokens = 4
    total = made.add(one, rows(16.0, 35.0))
    expect(made._mean(one, total).tolist(), [11.0, -11.0])


@invariant(4)
def test_nothing_is_left_of_it():
    made, one, other = pooler(), seq("a"), seq("b")
    made.add(other, rows(1.0))
    made._mean(one, made.add(one, rows(*[1.0] * 6)))
    expect([each.request_id for each in made._sums], ["b"])
