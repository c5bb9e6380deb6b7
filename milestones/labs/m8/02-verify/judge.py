from folovllm.worker.verify import verify
from lab_judge import expect, invariant


@invariant(1)
def test_without_guesses_a_step_brings_a_token():
    def draw(indices, position):
        return [40 + index for index in indices]

    expect(verify([[], []], draw), [[40], [41]])


@invariant(1)
def test_no_sequences():
    def draw(indices, position):
        raise AssertionError("there is nothing to draw")

    expect(verify([], draw), [])


@invariant(2)
def test_a_wrong_guess_is_replaced_by_what_was_drawn():
    says = [7, 3, 4, 0, 0]  # the note's example

    def draw(indices, position):
        return [says[position]]

    expect(verify([[7, 3, 9, 9]], draw), [[7, 3, 4]])


@invariant(2)
def test_what_agrees_behind_the_first_difference_does_not_count():
    says = [5, 3, 9, 1]

    def draw(indices, position):
        return [says[position]]

    expect(verify([[7, 3, 9]], draw), [[5]])


@invariant(2)
def test_a_guess_for_a_later_position_does_not_agree():
    def draw(indices, position):
        return [[3, 3, 9, 1][position]]

    expect(verify([[7, 3, 9]], draw), [[3]])


@invariant(2)
def test_a_token_may_be_large():
    expect(verify([[100_000, 5]], lambda places, position: [[int("100000"), 5, 6][position]]), [[100_000, 5, 6]])


@invariant(3)
def test_one_more_behind_a_run_that_was_right():
    says = [7, 3, 4]

    def draw(indices, position):
        return [says[position]]

    expect(verify([[7, 3]], draw), [[7, 3, 4]])


@invariant(3)
def test_ten_guesses_may_be_right():
    expect(verify([[7] * 10], lambda places, position: [7]), [[7] * 11])


@invariant(4)
def test_nothing_is_drawn_behind_a_difference():
    asked = []

    def draw(indices, position):
        asked.append(position)
        return [[7, 4, 9, 9][position]]

    verify([[7, 3, 9]], draw)
    expect(asked, [0, 1])


@invariant(5)
def test_each_sequence_goes_on_by_itself():
    says = [[7, 3, 4], [5, 0, 0], [6, 8, 0]]

    def draw(indices, position):
        return [says[index][position] for index in indices]

    expect(verify([[7, 3], [9, 9], [6]], draw), [[7, 3, 4], [5], [6, 8]])


@invariant(5)
def test_all_that_go_on_are_drawn_in_one_call_in_their_order():
    asked = []

    def draw(indices, position):
        asked.append((position, list(indices)))
        return [7] * len(indices)

    verify([[7, 7], [9], [7, 9], []], draw)
    expect(asked, [(0, [0, 1, 2, 3]), (1, [0, 2]), (2, [0])])


@invariant(6)
def test_where_there_is_nothing_to_draw_nothing_is_gained():
    says = [[None, 0, 0], [7, None, 0], [7, 3, 4]]

    def draw(indices, position):
        return [says[index][position] for index in indices]

    expect(verify([[], [7, 3], [7, 3]], draw), [[], [7], [7, 3, 4]])


@invariant(6)
def test_token_0_is_a_token():
    says = [0, 5, 9]

    def draw(places, position):
        return [says[position]]

    expect(verify([[0, 5]], draw), [[0, 5, 9]])


@invariant(6)
def test_the_guesses_stay_as_they_were():
    drafts = [[7, 3], [9]]

    def draw(indices, position):
        return [7] * len(indices)

    verify(drafts, draw)
    expect(drafts, [[7, 3], [9]])


@invariant(6)
def test_the_step_before_keeps_what_it_gained():
    first = verify([[7]], lambda places, position: [7])
    verify([[8]], lambda places, position: [9])
    expect(first, [[7, 7]])
