import pytest

from folovllm.spec_decode.ngram import find_continuation
from lab_judge import expect, invariant


@invariant(1)
def test_what_followed_is_proposed():
    text = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    expect(find_continuation(text, shortest=2, longest=3, count=2), [4, 5])


@invariant(1)
def test_the_text_may_begin_with_it():
    expect(find_continuation([4, 7, 4], shortest=1, longest=3, count=1), [7])


@invariant(1)
def test_each_proposal_is_a_list_of_its_own():
    first, second = (find_continuation([1, what, 1], shortest=1, longest=1, count=2) for what in (7, 8))
    expect([first, second], [[7, 1], [8, 1]])


@invariant(1)
def test_an_occurrence_may_run_into_the_last_tokens():
    expect(find_continuation([1, 2, 1, 2, 1], shortest=3, longest=3, count=1), [2])
    expect(find_continuation([8, 5, 5, 5], shortest=2, longest=2, count=1), [5])
    expect(find_continuation([5, 5], shortest=1, longest=3, count=1), [5])


@invariant(1)
def test_a_token_is_not_a_digit():
    expect(find_continuation([12, 5, 9, 2], shortest=1, longest=1, count=1), [])


@invariant(1)
def test_a_token_may_be_large():
    for like in (257, 65537):  # 1, if only its last bits were looked at
        expect(find_continuation([1, 7, like], shortest=1, longest=1, count=1), [])


@invariant(1)
def test_a_token_is_no_beginning_of_another():
    expect(find_continuation([57, 8, 5], shortest=1, longest=1, count=1), [])


@invariant(1)
def test_token_0_is_a_token():
    expect(find_continuation([0, 7, 0], shortest=1, longest=2, count=1), [7])


@invariant(2)
def test_the_latest_of_several():
    text = [1, 2, 60, 0, 1, 2, 70, 0, 1, 2]
    expect(find_continuation(text, shortest=2, longest=2, count=1), [70])


@invariant(2)
def test_the_latest_may_overlap_another():
    expect(find_continuation([5, 5, 5, 5], shortest=2, longest=2, count=2), [5])


@invariant(3)
def test_the_longest_decides():
    text = [1, 2, 3, 70, 2, 3, 80, 1, 2, 3]  # "1 2 3" was followed by 70, "2 3" by 80 as well
    expect(find_continuation(text, shortest=1, longest=3, count=1), [70])


@invariant(3)
def test_no_more_tokens_than_longest_are_compared():
    text = [1, 2, 3, 70, 2, 3, 80, 1, 2, 3]
    expect(find_continuation(text, shortest=1, longest=2, count=1), [80])


@invariant(3)
def test_a_shorter_one_will_do():
    expect(find_continuation([3, 70, 80, 9, 3], shortest=1, longest=4, count=2), [70, 80])


@invariant(3)
def test_all_of_the_last_tokens_are_compared():
    text = [1, 2, 3, 70, 1, 9, 3, 80, 1, 2, 3]  # in "1 9 3" the middle differs
    expect(find_continuation(text, shortest=1, longest=3, count=1), [70])


@invariant(4)
def test_fewer_than_shortest_say_nothing():
    text = [3, 70, 80, 9, 3]
    expect(find_continuation(text, shortest=2, longest=4, count=2), [])


@invariant(4)
def test_nothing_that_occurred_before():
    expect(find_continuation([1, 2, 3, 4], shortest=1, longest=3, count=2), [])


@invariant(4)
def test_nothing_stands_before_the_first_token():
    expect(find_continuation([5, 9, 5, 5], shortest=2, longest=2, count=1), [])


@invariant(4)
@pytest.mark.parametrize("text", [[], [1], [1, 2]])
def test_a_text_that_is_too_short(text):
    before = list(text)
    expect(find_continuation(text, shortest=1, longest=5, count=2), [])
    expect(text, before)


@invariant(5)
def test_the_text_stays_as_it_is():
    text = [1, 2, 3, 1, 2]
    find_continuation(text, shortest=1, longest=2, count=2)
    expect(text, [1, 2, 3, 1, 2])


@invariant(6)
def test_fewer_than_count_if_no_more_followed():
    expect(find_continuation([1, 2, 9, 1, 2], shortest=2, longest=2, count=7), [9, 1, 2])


@invariant(6)
def test_never_more_than_count():
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    expect([len(find_continuation(text, shortest=2, longest=2, count=n)) for n in (0, 1, 3)], [0, 1, 3])
