from folovllm.core.draft_length import StepCosts, best_length, expected_tokens
from lab_judge import expect, expect_close, invariant

FREE = [0.0, 0.0, 0.0, 0.0]


@invariant(1)
def test_the_notes_example():
    expect_close(expected_tokens(0.7, 4), 2.7731, atol=1e-9, mistakes={"counts-every-guess": 1 + 4 * 0.7})


@invariant(1)
def test_without_guesses_one_token():
    expect([expected_tokens(alpha, 0) for alpha in (0.0, 0.5, 1.0)], [1, 1, 1])


@invariant(1)
def test_guesses_that_are_always_right_and_never():
    expect([expected_tokens(1.0, 3), expected_tokens(0.0, 3)], [4, 1])


@invariant(2, likely="most-tokens")
def test_tokens_a_second_decide():
    costs = StepCosts(rows=[256, 512, 768, 1024, 1280], seconds=[12.5, 12.5, 15.3, 20.4, 25.5], draft_seconds=[0.0] * 5)
    expect(best_length(num_seqs=256, alpha=0.7, most=4, costs=costs), 2, mistakes={"most-tokens": 4})


@invariant(2)
def test_no_more_than_most():
    costs = StepCosts(rows=[1, 8], seconds=[1.0, 1.0], draft_seconds=[0.0, 0.0])
    expect([best_length(1, alpha=0.9, most=most, costs=costs) for most in (1, 5)], [1, 5])


@invariant(3, likely="one-row-too-few")
def test_the_last_token_is_a_row_too():
    costs = StepCosts(rows=[1, 2, 3, 4], seconds=[1.0, 1.0, 1.0, 9.0], draft_seconds=FREE)
    expect(best_length(num_seqs=1, alpha=0.9, most=3, costs=costs), 2, mistakes={"one-row-too-few": 3})


@invariant(3, likely="one-row-too-few")
def test_every_sequence_has_its_rows():
    costs = StepCosts(rows=[1, 8, 16, 32], seconds=[1.0, 1.0, 1.0, 4.0], draft_seconds=FREE)
    expect([best_length(n, alpha=0.9, most=3, costs=costs) for n in (1, 4, 8)], [3, 3, 1])


@invariant(4, likely="drafts-once")
def test_each_guess_takes_the_drafts_time():
    costs = StepCosts(rows=[1, 8, 16, 32], seconds=[10.0] * 4, draft_seconds=[4.0] * 4)
    # by hand, alpha 0.9: 1/10, 1.9/14 = 0.136, 2.71/18 = 0.151, 3.439/22 = 0.156, 4.095/26 = 0.1575, 4.686/30 = 0.1562
    expect(best_length(num_seqs=1, alpha=0.9, most=8, costs=costs), 4, mistakes={"drafts-once": 8})


@invariant(4, likely="drafts-once")
def test_the_draft_computes_one_row_for_each_sequence():
    costs = StepCosts(rows=[1, 8, 16, 32], seconds=[10.0] * 4, draft_seconds=[0.0, 0.0, 8.0, 90.0])
    # by hand, 16 sequences: 1/10, 1.9/18 = 0.1056, 2.71/26 = 0.1042
    expect([best_length(n, alpha=0.9, most=2, costs=costs) for n in (4, 8, 16)], [2, 2, 1])


@invariant(5, likely="never-none")
def test_where_no_guess_pays_there_is_none():
    costs = StepCosts(rows=[1, 2, 4], seconds=[1.0, 2.0, 4.0], draft_seconds=FREE[:3])
    expect(best_length(num_seqs=1, alpha=0.7, most=3, costs=costs), 0, mistakes={"never-none": 1})
    expect(best_length(num_seqs=1, alpha=0.7, most=0, costs=costs), 0)


@invariant(6, likely="largest-of-equals")
def test_of_equals_the_smallest():
    costs = StepCosts(rows=[1, 8], seconds=[1.0, 1.0], draft_seconds=[0.0, 0.0])
    expect(best_length(num_seqs=1, alpha=0.0, most=5, costs=costs), 0, mistakes={"largest-of-equals": 5})
