import math

import torch

from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.worker.model_runner_output import LogprobsRow
from folovllm.worker.prompt_logprobs import PROMPT_LOGPROBS_ROWS, PromptLogprobs
from lab_judge import expect, expect_close, invariant

PROMPT = [3, 1, 4, 1, 5, 9]


class Model:
    """Its logits are the hidden states themselves; it notes for how many rows it was asked."""

    def __init__(self):
        self.asked = []

    def compute_logits(self, hidden):
        self.asked.append(len(hidden))
        return hidden


def sequence(prompt, num_computed=0, num_top=2):
    params = SamplingParams(prompt_logprobs=num_top)
    return Sequence("a-0", "a", SequenceData(prompt), params, num_computed_tokens=num_computed)


def hidden_states(num_tokens, vocab=10):
    """Logits [num_tokens, vocab] after each position."""
    return torch.randn(num_tokens, vocab, generator=torch.Generator().manual_seed(0))


def logprob(logits, token_id):
    """By hand, in float64."""
    values = logits.double().tolist()
    return values[token_id] - math.log(sum(math.exp(value) for value in values))


def gathered(gatherer, seq, hidden):
    """All rows so far, as numbers."""
    return LogprobsRow.from_tensors(gatherer._gather_chunk(seq, hidden))


def tokens(rows):
    """The prompt's token that each row is about."""
    return [row.token_ids[0] for row in rows]


@invariant(1)
def test_the_logits_after_a_token_are_about_the_next():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    rows = gathered(gatherer, sequence(PROMPT), hidden)
    expect(tokens(rows)[:4], [1, 4, 1, 5])


@invariant(1)
def test_the_numbers_are_log_probabilities():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    rows = gathered(gatherer, sequence(PROMPT), hidden)
    own = [row.logprobs[0] for row in rows]
    expect_close(own, [logprob(hidden[at], PROMPT[at + 1]) for at in range(5)])


@invariant(1)
def test_they_are_computed_in_float32():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6).bfloat16()
    own = [row.logprobs[0] for row in gathered(gatherer, sequence(PROMPT), hidden)]
    expect_close(own, [logprob(hidden[at], PROMPT[at + 1]) for at in range(5)], atol=1e-4)


@invariant(1)
def test_logits_whose_powers_would_overflow():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    own = [row.logprobs[0] for row in gathered(gatherer, sequence(PROMPT), hidden + 200)]
    expect_close(own, [logprob(hidden[at], PROMPT[at + 1]) for at in range(5)], atol=1e-4)


@invariant(1)
def test_hidden_is_only_read():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    before, seq = hidden.tolist(), sequence(PROMPT)
    gathered(gatherer, seq, hidden)
    expect((hidden.tolist(), seq.num_computed_tokens), (before, 0))


@invariant(2)
def test_a_whole_prompt_has_a_row_less_than_tokens():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    expect(tokens(gathered(gatherer, sequence(PROMPT), hidden)), [1, 4, 1, 5, 9])


@invariant(2)
def test_a_prompt_of_one_token_has_no_row():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(1)
    expect(gathered(gatherer, sequence([3]), hidden), [])


@invariant(2)
def test_an_output_is_no_prompt():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    seq = sequence(PROMPT)
    seq.add_token_id(2)
    expect(tokens(gathered(gatherer, seq, hidden)), [1, 4, 1, 5, 9])


@invariant(3)
def test_the_last_row_of_a_chunk_is_about_the_next_chunk():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    rows = gathered(gatherer, sequence(PROMPT), hidden[:4])
    expect(tokens(rows), [1, 4, 1, 5])


@invariant(3)
def test_the_next_chunk_adds_its_own():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    seq = sequence(PROMPT)
    gathered(gatherer, seq, hidden[:4])
    seq.num_computed_tokens = 4
    rows = gathered(gatherer, seq, hidden[4:])
    expect(tokens(rows), [1, 4, 1, 5, 9])
    expect_close(rows[4].logprobs[0], logprob(hidden[4], 9))


@invariant(3)
def test_a_last_chunk_of_one_token_adds_nothing():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    seq = sequence(PROMPT)
    gathered(gatherer, seq, hidden[:5])
    seq.num_computed_tokens = 5
    expect(tokens(gathered(gatherer, seq, hidden[5:])), [1, 4, 1, 5, 9])


@invariant(3)
def test_chunks_of_two_prompts_in_turns():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    a, b = sequence(PROMPT), sequence([2, 7, 1, 8])
    gathered(gatherer, a, hidden[:4])
    expect(tokens(gathered(gatherer, b, hidden[:2])), [7, 1])
    a.num_computed_tokens = 4
    expect(tokens(gathered(gatherer, a, hidden[4:])), [1, 4, 1, 5, 9])


@invariant(4)
def test_a_prompt_that_begins_anew():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    seq = sequence(PROMPT)
    gathered(gatherer, seq, hidden[:4])  # then it is preempted, and computed from 0 again
    rows = gathered(gatherer, seq, hidden[:2])
    expect(tokens(rows), [1, 4])


@invariant(4)
def test_a_prompt_that_goes_on_from_the_middle():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    seq = sequence(PROMPT)
    gathered(gatherer, seq, hidden[:4])  # then it is preempted, and two of its tokens are still in the cache
    seq.num_computed_tokens = 2
    rows = gathered(gatherer, seq, hidden[2:5])
    expect(tokens(rows), [1, 4, 1, 5, 9])


@invariant(5)
def test_each_row_has_the_likeliest_behind_its_own():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    row = gathered(gatherer, sequence(PROMPT, num_top=3), hidden)[0]
    best = sorted(range(10), key=lambda token_id: -float(hidden[0, token_id]))[:3]
    expect(row.token_ids, [PROMPT[1], *best])
    expect_close(row.logprobs[1:], [logprob(hidden[0], token_id) for token_id in best])


@invariant(6)
def test_few_rows_of_logits_at_a_time():
    model, prompt = Model(), [at % 10 for at in range(150)]
    rows = gathered(PromptLogprobs(model, torch.device("cpu")), sequence(prompt), hidden_states(150))
    expect(tokens(rows), prompt[1:])
    expect(max(model.asked) <= PROMPT_LOGPROBS_ROWS, True)
    expect(sum(model.asked), 149)


@invariant(2)
def test_no_others_beside_the_prompts_own():
    gatherer, hidden = PromptLogprobs(Model(), torch.device("cpu")), hidden_states(6)
    rows = gathered(gatherer, sequence(PROMPT, num_top=0), hidden)
    expect([row.token_ids for row in rows], [[1], [4], [1], [5], [9]])
