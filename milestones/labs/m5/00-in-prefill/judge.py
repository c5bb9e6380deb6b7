from folovllm.core.sequence_group import in_prefill
from lab_judge import expect, invariant
from support import request


def sequence(prompt, output, computed):
    """Of `prompt` and `output` tokens, the first `computed` are in the cache."""
    seq = request("a", prompt).get_seqs()[0]
    for _ in range(output):
        seq.add_token_id(7)
    seq.num_computed_tokens = computed
    return seq


@invariant(1)
def test_chunk_by_chunk():
    expect([in_prefill(sequence(10, 0, computed)) for computed in (0, 4, 8)], [True, True, True])


@invariant(1)
def test_a_preempted_sequence_computes_its_prompt_again():
    expect(in_prefill(sequence(10, 3, 4)), True)


@invariant(1)
def test_though_it_was_through_before():
    seq = sequence(10, 3, 12)
    in_prefill(seq)
    seq.num_computed_tokens = 4
    expect((in_prefill(seq), seq.num_computed_tokens), (True, 4))


@invariant(1)
def test_its_last_token_is_one_of_its_tokens():
    expect(in_prefill(sequence(10, 0, 9)), True)


@invariant(2)
def test_a_decode_lacks_its_last_token():
    expect(in_prefill(sequence(10, 3, 12)), False)


@invariant(2)
def test_what_it_has_said_is_no_prompt_though_it_is_computed_again():
    expect([in_prefill(sequence(10, 3, computed)) for computed in (10, 11)], [False, False])


@invariant(2)
def test_the_prompt_is_through_before_anything_is_drawn():
    expect(in_prefill(sequence(10, 0, 10)), False)
