import math
from array import array

from folovllm.sample.beam_search import BeamSearch, Hypothesis
from lab_judge import expect, expect_close, invariant, raises

A, B, END = 0, 1, 2


def row(a, b, end):
    """One beam's candidates from their probabilities; END is the EOS."""
    return [A, B, END], [math.log(p) if p else -math.inf for p in (a, b, end)]


def after_one_step(width=2, max_new_tokens=8, **settings):
    """Beams A at .50 and B at .40 are alive."""
    search = BeamSearch(width, frozenset([END]), max_new_tokens, **settings)
    search.advance([row(0.5, 0.4, 0.1)])
    return search


def survivors(step):
    return [(s.parent, s.token_id) for s in step.survivors]


@invariant(1)
def test_all_continuations_are_ranked_together():
    search = BeamSearch(2, frozenset([END]), 8)
    ranked = search._ranked([row(0.5, 0.4, 0.1)])
    expect([(parent, token) for _, parent, token in ranked], [(0, A), (0, B), (0, END)])
    expect_close([score for score, _, _ in ranked], [math.log(p) for p in (0.5, 0.4, 0.1)])


@invariant(1)
def test_of_equals_the_first_given_stays_first():
    search = BeamSearch(2, frozenset([END]), 8)
    search.advance([row(0.5, 0.5, 0)])
    ranked = search._ranked([row(0.5, 0.5, 0), row(0.5, 0.5, 0)])
    expect([(parent, token) for _, parent, token in ranked], [(0, A), (0, B), (1, A), (1, B)])


@invariant(1)
def test_each_sum_is_rounded_to_float32():
    search = BeamSearch(1, frozenset([END]), 8)
    search.advance([([A], [-0.1])])
    score = search._ranked([([A], [-0.7])])[0][0]
    once = array("f", [-0.1])[0]
    expect(score, array("f", [once - 0.7])[0])


@invariant(1)
def test_there_is_a_row_for_each_live_beam():
    search = BeamSearch(2, frozenset([END]), 8)
    with raises(ValueError):
        search._ranked([row(0.5, 0.4, 0.1), row(0.5, 0.4, 0.1)])  # at first the prompt is the only beam


@invariant(1)
def test_what_is_masked_is_no_continuation():
    search = BeamSearch(2, frozenset([END]), 8)
    ranked = search._ranked([([A, B, END], [-1.0, -math.inf, math.nan])])
    expect(ranked, [(-1.0, 0, A)])


@invariant(1)
def test_each_ranking_is_a_list_of_its_own():
    search = BeamSearch(2, frozenset([END]), 8)
    first, second = (search._ranked([([token], [-1.0])]) for token in (A, B))
    expect([first, second], [[(-1.0, 0, A)], [(-1.0, 0, B)]])


@invariant(2)
def test_both_survivors_may_come_from_one_beam():
    search = after_one_step()
    step = search.advance([row(0.4, 0.35, 0), row(0.3, 0.3, 0)])  # .200 .175, .120 .120
    expect(survivors(step), [(0, A), (0, B)])


@invariant(2)
def test_an_end_leaves_the_places_to_others():
    search = after_one_step()
    step = search.advance([row(0.4, 0.35, 0.25), row(0.2, 0.1, 0.7)])  # the .280 is an end
    expect(len(step.survivors), 2)


@invariant(3)
def test_only_an_end_among_the_first_counts():
    search = after_one_step()
    step = search.advance([row(0.5, 0.1, 0.3), row(0.3, 0.1, 0.5)])  # .25, an end .20, an end .15, .12
    expect((survivors(step), [e.parent for e in step.endings]), ([(0, A), (1, A)], [1]))


@invariant(3)
def test_there_may_be_several_eos():
    search = BeamSearch(3, frozenset([A, END]), 8)
    step = search.advance([([A, B, END], [-0.5, -2.0, -1.0])])
    expect((survivors(step), [e.hypothesis.stop_token_id for e in step.endings]), ([(0, B)], [A, END]))


@invariant(3)
def test_the_last_token_ends_everybody():
    search = after_one_step(max_new_tokens=2)
    step = search.advance([row(0.4, 0.35, 0.25), row(0.2, 0.1, 0.7)])
    expect((survivors(step), [e.parent for e in step.endings]), ([], [1, 0]))


@invariant(3)
def test_who_ends_by_the_length_has_no_stop_token():
    search = BeamSearch(2, frozenset([END]), max_new_tokens=1)
    step = search.advance([([A, END, B], [-0.5, -1.0, -2.0])])
    expect([e.hypothesis.stop_token_id for e in step.endings], [None, END])


@invariant(4)
def test_the_pool_holds_the_best_first():
    search = after_one_step()
    search.advance([row(0.4, 0.35, 0.25), row(0.2, 0.1, 0.7)])
    search.advance([row(0.1, 0.1, 0.8), row(0.2, 0.2, 0.6)])
    expect([h.token_ids for h in search.pool], [[A, A, END], [B, END]])


@invariant(4)
def test_of_equals_the_older_one_stays_first():
    search = BeamSearch(2, frozenset([END]), 8, length_penalty=0.0)
    search.advance([([A, B, END], [-1.0, -2.0, -1.0])])
    search.advance([([END, A, B], [0.0, -1.0, -2.0]), ([A, B, END], [-1.0, -2.0, -3.0])])
    expect([(h.token_ids, h.score) for h in search.pool], [([END], -1.0), ([A, END], -1.0)])


@invariant(4)
def test_who_finds_no_place_in_the_pool_is_not_kept():
    search = BeamSearch(1, frozenset([END]), 8, length_penalty=0.0, early_stopping="never")
    search.advance([([A], [-0.5])])
    search.pool = [Hypothesis([END], -0.1, -0.1, END)]
    step = search.advance([([END, A], [-0.5, -0.6])])
    expect([e.kept for e in step.endings], [False])


@invariant(5)
def test_the_live_beams_are_the_survivors():
    search = after_one_step()
    step = search.advance([row(0.4, 0.35, 0.25), row(0.2, 0.1, 0.7)])
    expect([beam.token_ids for beam in search.live], [[A, A], [A, B]])
    expect([(e.hypothesis.token_ids, e.kept) for e in step.endings], [([B, END], True)])


@invariant(5)
def test_when_it_is_over_no_beam_lives():
    search = after_one_step(width=1, early_stopping=True)
    step = search.advance([row(0.2, 0.1, 0.7)])
    expect((step.survivors, search.live), ([], []))


@invariant(5)
def test_it_is_over_when_no_live_beam_can_enter_the_pool_any_more():
    search = after_one_step(width=1)
    step = search.advance([row(0.2, 0.1, 0.7)])  # the end has .35; the best that lives on has .10
    expect((step.survivors, search.live), ([], []))


@invariant(5)
def test_it_goes_on_while_a_live_beam_is_better_than_the_pool():
    search = after_one_step()
    step = search.advance([row(0.9, 0.05, 0.05), row(0.9, 0.05, 0.05)])
    expect(survivors(step), [(0, A), (1, A)])


@invariant(5)
def test_the_best_of_them_is_asked_at_its_full_length():
    search = BeamSearch(2, frozenset([END]), 8)
    search.advance([row(0.5, 0.1, 0.4)])  # the end has log .4 / 1 = -.92
    step = search.advance([row(0.45, 0.05, 0.5), row(0.1, 0.1, 0.1)])  # log .225 / 2 = -.75 is better
    expect(survivors(step), [(0, A), (0, B)])


@invariant(5)
def test_the_rows_are_only_read():
    search = BeamSearch(2, frozenset([END]), 8)
    rows = [([A, B, END], [-2.0, -1.0, -3.0])]
    search.advance(rows)
    expect(rows, [([A, B, END], [-2.0, -1.0, -3.0])])


@invariant(5)
def test_beams_that_are_stuck_end_as_they_are():
    search = after_one_step()
    nothing = ([A, B, END], [-math.inf] * 3)
    step = search.advance([nothing, nothing])
    expect([e.hypothesis.token_ids for e in step.endings], [[A], [B]])


@invariant(5)
def test_a_beam_that_is_stuck_is_dropped_where_an_output_has_ended():
    search = after_one_step()
    search.advance([row(0.4, 0.35, 0.25), row(0.2, 0.1, 0.7)])  # [B, END] is in the pool
    step = search.advance([([A, B, END], [-math.inf] * 3)] * 2)
    expect((step.endings, search.live, [h.token_ids for h in search.pool]), ([], [], [[B, END]]))
