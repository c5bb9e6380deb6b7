import torch

from folovllm.sample.logits_processors import Penalties
from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, expect_close, invariant


def row(prompt, output, **settings):
    return SamplingRow(SamplingParams(**settings), prompt, output, frozenset(), None)


def penalties(*rows):
    made = Penalties()
    made.update(rows)
    return made


@invariant(1)
def test_repetition_takes_from_positive_and_from_negative_logits():
    asked = row(prompt=[0], output=[1, 3], repetition_penalty=2.0)
    logits = torch.tensor([[4.0, -4.0, 3.0, 0.5]])
    expect_close(penalties(asked).apply(logits), [[2.0, -8.0, 3.0, 0.25]])


@invariant(1)
def test_repetition_acts_once():
    asked = row(prompt=[0, 0, 0], output=[0, 0], repetition_penalty=2.0)
    logits = torch.tensor([[4.0, 1.0]])
    expect_close(penalties(asked).apply(logits), [[2.0, 1.0]])


@invariant(2)
def test_frequency_counts_how_often():
    asked = row(prompt=[2, 2, 2], output=[0, 1, 0], frequency_penalty=0.5)
    logits = torch.tensor([[4.0, 4.0, 4.0]])
    expect_close(penalties(asked).apply(logits), [[3.0, 3.5, 4.0]])


@invariant(2)
def test_a_negative_penalty_adds():
    asked = row(prompt=[], output=[0, 1, 0], frequency_penalty=-0.1)
    logits = torch.tensor([[0.3, 0.3, 0.3]])
    expect_close(penalties(asked).apply(logits), [[0.5, 0.4, 0.3]])


@invariant(3)
def test_presence_counts_once_and_in_the_output_only():
    asked = row(prompt=[2], output=[0, 1, 0], presence_penalty=0.5)
    logits = torch.tensor([[4.0, 4.0, 4.0, 4.0]])
    expect_close(penalties(asked).apply(logits), [[3.5, 3.5, 4.0, 4.0]])


@invariant(4)
def test_repetition_acts_before_the_others():
    asked = row(prompt=[], output=[0], repetition_penalty=2.0, presence_penalty=1.0)
    logits = torch.tensor([[4.0, 4.0]])
    expect_close(penalties(asked).apply(logits), [[1.0, 4.0]])


@invariant(4)
def test_the_sign_is_that_of_the_logit_as_it_came():
    asked = row(prompt=[], output=[0], repetition_penalty=2.0, presence_penalty=1.0)
    logits = torch.tensor([[0.5, 4.0]])
    expect_close(penalties(asked).apply(logits), [[-0.75, 4.0]])


@invariant(5)
def test_each_row_has_its_own_settings_and_tokens():
    first = row(prompt=[0], output=[1], repetition_penalty=2.0)
    second = row(prompt=[0], output=[2, 2], frequency_penalty=1.0)
    logits = torch.tensor([[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]])
    expect_close(penalties(first, second).apply(logits), [[2.0, 2.0, 4.0], [4.0, 4.0, 2.0]])


@invariant(5)
def test_a_row_in_which_nothing_occurred_stays_as_it_is():
    asked = row(prompt=[], output=[], repetition_penalty=2.0, presence_penalty=1.0)
    expect_close(penalties(asked).apply(torch.tensor([[4.0, -4.0]])), [[4.0, -4.0]])


@invariant(5)
def test_the_logits_are_edited_in_place():
    logits = torch.tensor([[4.0, 4.0]])
    returned = penalties(row(prompt=[0], output=[], repetition_penalty=2.0)).apply(logits)
    expect_close(logits, [[2.0, 4.0]])
    expect(returned is logits, True)


@invariant(6)
def test_what_is_added_counts_at_the_next_call():
    output = [0]
    both = penalties(row([], output, frequency_penalty=1.0))
    both.apply(torch.tensor([[4.0, 4.0]]))
    output += [1, 0]
    expect_close(both.apply(torch.tensor([[4.0, 4.0]])), [[2.0, 3.0]])


@invariant(6)
def test_it_counts_too_where_no_other_token_has_come():
    output = [0]
    both = penalties(row([], output, frequency_penalty=1.0))
    both.apply(torch.tensor([[4.0, 4.0]]))
    output += [0, 0]
    expect_close(both.apply(torch.tensor([[4.0, 4.0]])), [[1.0, 4.0]])
