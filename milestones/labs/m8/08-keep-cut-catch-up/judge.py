import torch

from lab_judge import expect, invariant
from support import Books, positions_of, states, text


@invariant(1)
def test_a_prompt_begins_with_zeros():
    books, seq = Books(), text("a", [10, 11, 12])
    books.read([seq], [3], states(5, 6, 7))
    expect(books.kept("a"), (0, [None, 5, 6, 7]))


@invariant(1)
def test_the_next_chunk_stands_behind_the_first():
    books, seq = Books(), text("a", [10, 11, 12, 13], num_computed=2)
    books.keep("a", 1, [4, 5])
    books.read([seq], [2], states(6, 7))
    expect(books.kept("a"), (1, [4, 5, 6, 7]))


@invariant(1)
def test_where_all_have_keys_the_first_row_is_the_one_before_the_next_token():
    books, seq = Books(), text("a", [10, 11], [12], num_computed=2)
    books.keep("a", 3, [])
    books.read([seq], [1], states(2))
    expect(books.kept("a"), (3, [2]))


@invariant(1)
def test_each_sequence_has_rows_of_its_own():
    books = Books()
    books.keep("b", 2, [1])
    books.read([text("a", [10, 11, 12]), text("b", [20, 21], [22], num_computed=2)], [3, 1], states(5, 6, 7, 8))
    expect((books.kept("a"), books.kept("b")), ((0, [None, 5, 6, 7]), (2, [1, 8])))


@invariant(1)
def test_what_is_kept_is_a_copy_of_the_same_dtype():
    books, hidden = Books(torch.bfloat16), states(5, 6, 2).to(torch.bfloat16)
    books.keep("b", 3, [])
    books.read([text("a", [10, 11]), text("b", [20, 21], [22], num_computed=2)], [2, 1], hidden)
    hidden.zero_()
    expect([books.kept("a"), books.kept("b")], [(0, [None, 5, 6]), (3, [2])])
    expect([str(rows.dtype) for _, rows in books._held.values()], ["torch.bfloat16"] * 2)


@invariant(1)
def test_sequences_that_are_not_in_the_step_stay():
    books, seq = Books(), text("a", [10, 11, 12])
    books.keep("b", 2, [1, 2])
    books.read([seq], [2], states(5, 6))
    expect((books.kept("b"), seq.num_computed_tokens), ((2, [1, 2]), 0))


@invariant(1)
def test_what_it_is_given_stays():
    seqs, nums, hidden = [text("a", [10, 11]), text("b", [20])], [2, 1], states(5, 6, 7)
    Books().read(seqs, nums, hidden)
    expect(([seq.seq_id for seq in seqs], nums, positions_of(hidden)), (["a", "b"], [2, 1], [5, 6, 7]))


@invariant(2)
def test_rows_of_wrong_guesses_are_cut():
    books, seq = Books(), text("a", [10, 11], [12, 13], num_computed=3)
    books.keep("a", 3, [2, 93, 94, 95])  # position 3 was a guess, and another token was drawn
    books.read([seq], [1], states(3))
    expect(books.kept("a"), (3, [2, 3]))


@invariant(2)
def test_rows_of_right_ones_stay():
    books, seq = Books(), text("a", [10, 11], [12, 13, 14], num_computed=4)
    books.keep("a", 3, [2, 3, 94])
    books.read([seq], [3], states(4, 5, 6))
    expect(books.kept("a"), (3, [2, 3, 4, 5, 6]))


@invariant(3)
def test_a_gap_begins_anew_with_zeros():
    books, seq = Books(), text("a", [10, 11, 12, 13, 14], num_computed=4)
    books.keep("a", 2, [1, 2])  # of position 3 there is nothing
    books.read([seq], [1], states(4))
    expect(books.kept("a"), (4, [None, 4]))


@invariant(3)
def test_so_does_a_sequence_that_is_computed_once_more():
    books, seq = Books(), text("a", [10, 11, 12, 13], num_computed=1)
    books.keep("a", 3, [2, 3])
    books.read([seq], [2], states(1, 2))
    expect(books.kept("a"), (1, [None, 1, 2]))


@invariant(3)
def test_and_one_behind_a_prefix_in_the_cache():
    books, seq = Books(), text("a", [10, 11, 12, 13, 14, 15], num_computed=4)
    books.read([seq], [2], states(4, 5))
    expect(books.kept("a"), (4, [None, 4, 5]))


@invariant(4)
def test_eight_tokens_may_wait():
    books = Books()
    books.read([text("a", range(8)), text("b", range(9))], [8, 9], states(*range(1, 18)))
    expect(books.caught_up, [("b", 9)])


@invariant(4)
def test_all_that_lack_more_catch_up_together():
    books = Books()
    books.keep("b", 2, [1, 2, 3])
    seqs = [text("a", range(20)), text("b", range(4), range(9), num_computed=4)]
    books.read(seqs, [12, 9], states(*range(1, 22)))
    expect((books.caught_up, books.calls), ([("a", 12), ("b", 13)], 1))


@invariant(4)
def test_tokens_that_have_keys_do_not_count():
    books, seq = Books(), text("a", range(20), [20], num_computed=20)
    books.keep("a", 20, [19])
    books.read([seq], [1], states(20))
    expect(books.caught_up, [])


@invariant(4)
def test_draft_tokens_do_not_count():
    books, seq = Books(), text("a", range(6), [6], num_computed=6)
    books.keep("a", 5, [4, 5])
    books.read([seq], [12], states(*range(6, 18)))
    expect((books.caught_up, books.kept("a")[0], books.calls), ([], 5, 0))


@invariant(4)
def test_a_token_that_the_host_does_not_know_waits():
    books, seq = Books(), text("a", range(4), [4, 5, 6, 7, -1], num_computed=8)
    books.keep("a", 0, [None, 1, 2, 3, 4, 5, 6, 7, 8])
    books.read([seq], [1], states(9))
    expect(books.caught_up, [])
    seq.data.output_token_ids[-1:] = [8, -1]
    seq.num_computed_tokens = 9
    books.read([seq], [1], states(10))
    expect(books.caught_up, [("a", 9)])
