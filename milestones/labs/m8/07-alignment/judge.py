import torch

from lab_judge import expect, invariant
from support import Books, positions_of, text


@invariant(1)
def test_a_token_stands_beside_the_hidden_state_before_it():
    books, seq = Books(), text("a", [10, 11, 12, 13], [14])
    books.keep("a", 2, [1, 2, 3])
    known, starts, before = books._take([(seq, 5)])
    expect((known, starts), ([[12, 13, 14]], [2]))
    expect(positions_of(before), [1, 2, 3])


@invariant(1)
def test_what_is_behind_the_end_does_not_belong_to_it():
    books, seq = Books(), text("a", [10, 11, 12, 13], [14])
    books.keep("a", 2, [1, 2, 3, 4])
    known, starts, before = books._take([(seq, 4)])
    expect((known, starts, positions_of(before)), ([[12, 13]], [2], [1, 2]))


@invariant(2)
def test_sequences_stand_one_after_the_other():
    books = Books()
    books.keep("a", 1, [7, 8])
    books.keep("b", 4, [3])
    known, starts, before = books._take([(text("a", [10, 11, 12]), 3), (text("b", [20, 21, 22, 23], [24]), 5)])
    expect((known, starts), ([[11, 12], [24]], [1, 4]))
    expect(positions_of(before), [7, 8, 3])


@invariant(2)
def test_they_have_the_caches_dtype():
    books = Books(torch.bfloat16)
    books.keep("b", 4, [3])
    _, _, before = books._take([(text("a", [10, 11, 12]), 3), (text("b", [20, 21, 22, 23], [24]), 5)])
    expect(str(before.dtype), "torch.bfloat16")


@invariant(2)
def test_what_was_listed_stays():
    books = Books()
    first = books._take([(text("a", [10, 11, 12]), 3)])
    books._take([(text("b", [20, 21]), 2)])
    expect((first[0], first[1], positions_of(first[2])), ([[12]], [2], [None]))


@invariant(3)
def test_what_was_taken_has_keys():
    books, seq = Books(), text("a", [10, 11, 12, 13], [14])
    books.keep("a", 2, [1, 2, 3])
    books._take([(seq, 5)])
    expect(books.kept("a"), (5, []))


@invariant(3)
def test_sequences_that_are_not_asked_for_stay():
    books, ends = Books(), [(text("a", [10, 11, 12]), 3)]
    books.keep("b", 4, [3])
    books._take(ends)
    expect((books.kept("b"), len(ends)), ((4, [3]), 1))


@invariant(3)
def test_hidden_states_behind_the_end_stay():
    books, seq = Books(), text("a", [10, 11, 12, 13], [14])
    books.keep("a", 2, [1, 2, 3, 4])
    books._take([(seq, 4)])
    expect(books.kept("a"), (4, [3, 4]))


@invariant(4)
def test_of_a_sequence_that_is_not_known_the_last_token_is_taken():
    books, seq = Books(), text("a", [10, 11, 12, 13], [14])
    known, starts, before = books._take([(seq, 5)])
    expect((known, starts, positions_of(before)), ([[14]], [4], [None]))
    expect(books.kept("a"), (5, []))


@invariant(4)
def test_what_is_kept_of_it_has_the_caches_dtype():
    books = Books(torch.bfloat16)
    books._take([(text("a", [10, 11, 12]), 3)])
    expect([str(rows.dtype) for _, rows in books._held.values()], ["torch.bfloat16"])


@invariant(4)
def test_so_it_is_where_a_hidden_state_is_missing():
    books, seq = Books(), text("a", [10, 11, 12, 13], [14])
    books.keep("a", 2, [1, 2])
    known, starts, before = books._take([(seq, 5)])
    expect((known, starts, positions_of(before)), ([[14]], [4], [None]))


@invariant(4)
def test_so_it_is_where_no_token_lacks_keys():
    books, seq = Books(), text("a", [10, 11, 12, 13], [14])
    books.keep("a", 5, [])
    known, starts, before = books._take([(seq, 5)])
    expect((known, starts, positions_of(before)), ([[14]], [4], [None]))


@invariant(4)
def test_one_without_a_hidden_state_beside_another():
    books = Books()
    books.keep("b", 4, [3])
    known, starts, before = books._take([(text("a", [10, 11, 12]), 3), (text("b", [20, 21, 22, 23], [24]), 5)])
    expect((known, starts, positions_of(before)), ([[12], [24]], [2, 4], [None, 3]))
