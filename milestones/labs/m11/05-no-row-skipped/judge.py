from folovllm.core.kv_cache_manager import _needs_every_row
from folovllm.pooling_params import PoolingParams
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant


def seqs(pooling=None, prompt_logprobs=None, n=1):
    params = SamplingParams(n=n, prompt_logprobs=prompt_logprobs)
    return Request("r", None, [1, 2, 3], params, pooling_params=pooling).get_seqs()


@invariant(1)
def test_a_mean_needs_every_row():
    expect(_needs_every_row(*seqs(PoolingParams(skip_reading_prefix_cache=True))), True)


@invariant(1)
def test_the_last_row_is_enough_for_others():
    expect(_needs_every_row(*seqs(PoolingParams())), False)


@invariant(1)
def test_what_else_is_asked_for_does_not_count():
    expect(_needs_every_row(*seqs(PoolingParams(), prompt_logprobs=2)), False)


@invariant(2)
def test_log_probabilities_of_the_prompt_come_from_every_row():
    found = [_needs_every_row(*seqs(prompt_logprobs=count)) for count in (None, 0, 3)]
    expect(found, [False, True, True])


@invariant(2)
def test_the_first_sequence_answers_for_its_siblings():
    expect([_needs_every_row(seq) for seq in seqs(prompt_logprobs=1, n=3)], [True, False, False])


@invariant(3)
def test_a_prompt_is_answered_once():
    (seq,) = seqs(prompt_logprobs=1)
    seq.add_token_id(7)
    expect(_needs_every_row(seq), False)
