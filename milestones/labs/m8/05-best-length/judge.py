from folovllm.core.draft_length import HostCosts, StepCosts, best_length, expected_tokens
from lab_judge import expect, expect_close, invariant


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
def test_tokens_a_second_decide():
    costs = StepCosts(rows=[256, 512, 768, 1024, 1280], seconds=[12.5, 12.5, 15.3, 20.4, 25.5], draft_seconds=[0.0] * 5)
    expect(best_length(num_seqs=256, alpha=0.7, most=4, costs=costs), 2)


@invariant(2)
def test_no_more_than_most():
    costs = StepCosts(rows=[1, 8], seconds=[1.0, 1.0], draft_seconds=[0.0, 0.0])
    expect([best_length(1, alpha=0.9, most=most, costs=costs) for most in (0, 1, 5)], [0, 1, 5])


@invariant(2)
def test_more_guesses_may_pay_where_a_few_do_not():
    costs = StepCosts([1, 2, 8], [1, 2, 2], [0, 0, 0])  # a second row doubles a step, and six more are free
    expect(best_length(num_seqs=1, alpha=1.0, most=7, costs=costs), 7)


@invariant(3)
def test_every_sequence_has_its_rows():
    costs = StepCosts(rows=[1, 8, 16, 32], seconds=[1.0, 1.0, 1.0, 4.0], draft_seconds=[0.0] * 4)
    expect([best_length(n, alpha=0.9, most=3, costs=costs) for n in (1, 4, 8)], [3, 3, 1])


@invariant(3)
def test_each_guess_takes_the_drafts_time():
    costs = StepCosts(rows=[1, 8, 16, 32], seconds=[10.0] * 4, draft_seconds=[4.0] * 4)
    # by hand, alpha 0.9: 1/10, 1.9/14 = 0.136, 2.71/18 = 0.151, 3.439/22 = 0.156, 4.095/26 = 0.1575, 4.686/30 = 0.1562
    expect(best_length(num_seqs=1, alpha=0.9, most=8, costs=costs), 4)


@invariant(3)
def test_the_host_works_for_each_token_that_is_gained():
    costs = StepCosts([1, 8], [1.0, 1.0], [0.3, 0.3], HostCosts(per_token=1.0))
    # by hand, alpha 0.5: 1/2, 1.5/(1 + 0.3 + 1.5) = 0.536, 1.75/(1 + 0.6 + 1.75) = 0.522
    expect(best_length(num_seqs=1, alpha=0.5, most=3, costs=costs), 1)


@invariant(3)
def test_the_host_works_for_each_sequence_once():
    costs = StepCosts([2, 4], [1.0, 1.3], [0.0, 0.0], HostCosts(per_token=0.5))
    # by hand, two sequences, alpha 0.5: 1/(1 + 1) = 0.5, 1.5/(1.3 + 1.5) = 0.536, which is 1.07 times as much
    expect(best_length(num_seqs=2, alpha=0.5, most=1, costs=costs), 1)


@invariant(4)
def test_where_no_guess_pays_there_is_none():
    costs = StepCosts(rows=[1, 2, 4], seconds=[1.0, 2.0, 4.0], draft_seconds=[0.0] * 3)
    expect(best_length(num_seqs=1, alpha=0.7, most=3, costs=costs), 0)


@invariant(4)
def test_a_small_gain_is_not_worth_it():
    for seconds, best in ((1.45, 0), (1.4, 1)):  # 1.5 tokens: a gain of 1.034, and of 1.071
        costs = StepCosts(rows=[1, 2], seconds=[1.0, seconds], draft_seconds=[0.0, 0.0])
        expect(best_length(num_seqs=1, alpha=0.5, most=1, costs=costs), best)


@invariant(4)
def test_just_so_much_is_worth_it():
    costs = StepCosts(rows=[1, 2], seconds=[1.0, 1.0], draft_seconds=[0.0, 0.0])
    expect(best_length(num_seqs=1, alpha=0.05, most=1, costs=costs), 1)


@invariant(5)
def test_of_equals_the_smallest():
    costs = StepCosts(rows=[1, 2, 3], seconds=[1.4, 1.5, 1.75], draft_seconds=[0.0] * 3)
    # by hand, alpha 0.5: 1/1.4, 1.5/1.5, 1.75/1.75
    expect(best_length(num_seqs=1, alpha=0.5, most=2, costs=costs), 1)
