from folovllm.spec_decode.metrics import SpecDecodingStats
from lab_judge import expect, invariant


@invariant(1)
def test_ten_drafts_of_four_guesses():
    stats = SpecDecodingStats(num_drafts=10, num_draft_tokens=40, num_accepted_tokens_per_pos=(7, 5, 3, 2))
    expect(stats.acceptance_length, 2.7)


@invariant(1)
def test_all_wrong_and_all_right():
    wrong = SpecDecodingStats(10, 40, (0, 0, 0, 0))
    right = SpecDecodingStats(10, 40, (10, 10, 10, 10))
    expect([wrong.acceptance_length, right.acceptance_length], [1.0, 5.0])


@invariant(1)
def test_a_length_is_not_rounded():
    expect(SpecDecodingStats(3, 12, (1, 0, 0, 0)).acceptance_length, 1 + 1 / 3)


@invariant(2)
def test_before_any_draft():
    expect(SpecDecodingStats().acceptance_length, 1.0)
