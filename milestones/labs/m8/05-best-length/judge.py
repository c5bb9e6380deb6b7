from folovllm.core.draft_length import StepCosts, best_length, expected_tokens
from lab_judge import expect, expect_close, invariant

FREE = float("inf")  # rows that cost nothing


@invariant(1)
def test_the_notes_example():
    expect_close(expected_tokens(0.7, 4), 2.7731, atol=1e-9)


@invariant(1)
def test_without_guesses_one_token():
    expect([expected_tokens(alpha, 0) for alpha in (0.0, 0.5, 1.0)], [1, 1, 1])


@invariant(1)
def test_guesses_that_are_always_right_and_never():
    expect([expected_tokens(1.0, 3), expected_tokens(0.0, 3)], [4, 1])


@invariant(2)
def test_tokens_in_a_time_decide():
    costs = StepCosts(ridge=2)
    # by hand, alpha 0.7: 1/1.5, 1.7/2 = 0.85, 2.19/2.5 = 0.876, 2.533/3 = 0.844, 2.7731/3.5 = 0.792
    expect(best_length(num_seqs=1, alpha=0.7, most=4, costs=costs), 2)


@invariant(2)
def test_no_more_than_most():
    expect([best_length(1, alpha=0.9, most=most, costs=StepCosts(FREE)) for most in (0, 1, 5)], [0, 1, 5])


@invariant(2)
def test_more_guesses_may_pay_where_a_few_do_not():
    costs = StepCosts(FREE, waiting=1.0)  # any guess doubles a step, and further ones are free
    expect(best_length(num_seqs=1, alpha=1.0, most=7, costs=costs), 7)


@invariant(3)
def test_every_sequence_has_its_rows():
    costs = StepCosts(ridge=16)
    # by hand, alpha 0.9, 32 sequences: 1/3, 1.9/5 = 0.38, 2.71/7 = 0.387, 3.439/9 = 0.382
    expect([best_length(n, alpha=0.9, most=3, costs=costs) for n in (1, 32, 64)], [3, 2, 1])


@invariant(3)
def test_each_guess_takes_the_drafts_time():
    costs = StepCosts(ridge=8, draft=0.2)
    # by hand, alpha 0.8: 1/1.125, 1.8/1.475 = 1.22, 2.44/1.825 = 1.337, 2.952/2.175 = 1.357, 3.362/2.525 = 1.331
    expect(best_length(num_seqs=1, alpha=0.8, most=8, costs=costs), 3)


@invariant(4)
def test_where_no_guess_pays_there_is_none():
    expect(best_length(num_seqs=1, alpha=0.7, most=3, costs=StepCosts(ridge=0.1)), 0)


@invariant(4)
def test_a_small_gain_is_not_worth_it():
    for draft, best in ((0.45, 0), (0.4, 1)):  # 1.5 tokens: a gain of 1.034, and of 1.071
        expect(best_length(num_seqs=1, alpha=0.5, most=1, costs=StepCosts(FREE, draft)), best)


@invariant(4)
def test_just_so_much_is_worth_it():
    expect(best_length(num_seqs=1, alpha=0.05, most=1, costs=StepCosts(FREE)), 1)


@invariant(5)
def test_of_equals_the_smallest():
    # by hand, alpha 0.5: 1/1.25, 1.5/1.5, 1.75/1.75
    expect(best_length(num_seqs=1, alpha=0.5, most=2, costs=StepCosts(ridge=4)), 1)
