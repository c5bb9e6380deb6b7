"""The engine around a model: several sequences, streams, aborts, order, metrics."""

from __future__ import annotations

import pytest

from folovllm.request import SequenceStatus
from tests.m1.support import assert_empty, params, run, scripted


def test_n_sequences_end_each_in_its_own_way(engine):
    engine.add_request("r", "x", scripted("first", "second one", n=2, max_tokens=8))
    output = run(engine)[0]["r"]
    assert [(c.index, c.text, c.finish_reason) for c in output.outputs] == [
        (0, "first", "stop"),
        (1, "second o", "length"),
    ]


def test_a_request_of_n_is_finished_when_all_are(engine):
    engine.add_request("r", "x", scripted("a", "bb", "ccc", n=3))
    _, seen = run(engine)
    assert [out.finished for out in seen] == [False] * (len(seen) - 1) + [True]


def test_best_of_returns_the_n_most_likely_and_ignores_the_rest(engine):
    engine.add_request("r", "x", params(n=2, best_of=5, seed=1, max_tokens=6, ignore_eos=True))
    engine.add_request("all", "x", params(n=5, seed=1, max_tokens=6, ignore_eos=True, logprobs=0))
    done = run(engine)[0]
    output = done["r"]
    ranked = sorted((c.cumulative_logprob for c in done["all"].outputs), reverse=True)
    assert [c.cumulative_logprob for c in output.outputs] == ranked[:2]
    assert [c.index for c in output.outputs] == [0, 1]
    assert len({tuple(c.token_ids) for c in output.outputs}) == 2


def test_sequence_i_of_n_draws_as_a_request_with_seed_plus_i(engine):
    engine.add_request("n", "x", params(n=3, seed=10, max_tokens=8))
    for i in range(3):
        engine.add_request(f"one{i}", "x", params(seed=10 + i, max_tokens=8))
    done, _ = run(engine)
    assert [c.token_ids for c in done["n"].outputs] == [done[f"one{i}"].outputs[0].token_ids for i in range(3)]


def test_a_seeded_request_says_the_same_whatever_ran_before(engine):
    def tokens(request_id):
        return run(engine)[0][request_id].outputs[0].token_ids

    engine.add_request("a", "x", params(seed=4))
    alone = tokens("a")
    engine.add_request("noise", "y", params())
    engine.add_request("b", "x", params(seed=4))
    assert tokens("b") == alone
    assert len(set(alone)) > 5  # the draws differ from step to step


def test_stream_deltas_join_to_the_whole(engine):
    engine.add_request("whole", "x", params(seed=2, logprobs=1))
    whole = run(engine)[0]["whole"].outputs[0]
    pieces = [out.outputs[0] for out in engine.generate_stream("x", params(seed=2, logprobs=1))]
    assert "".join(p.text for p in pieces) == whole.text
    assert [t for p in pieces for t in p.token_ids] == whole.token_ids
    assert [entry for p in pieces for entry in p.logprobs] == whole.logprobs
    assert all(len(p.token_ids) == 1 for p in pieces)
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_closing_a_stream_aborts_its_request(engine):
    stream = engine.generate_stream("x", params())
    next(stream)
    stream.close()
    assert_empty(engine)


def test_a_stream_that_never_began_can_be_closed(engine):
    engine.generate_stream("x", params()).close()
    assert_empty(engine)


def test_aborting_a_streams_request_ends_the_stream(engine):
    stream = engine.generate_stream("x", params())
    engine.abort_request(next(stream).request_id)
    assert list(stream) == []
    assert_empty(engine)


def test_requests_run_in_the_order_of_arrival(engine):
    for name in ("c", "a", "b"):
        engine.add_request(name, "x", params(max_tokens=2))
    assert list(run(engine)[0]) == ["c", "a", "b"]


def test_an_aborted_request_is_silent_and_the_others_go_on(engine):
    for name in ("a", "b"):
        engine.add_request(name, "x", scripted("text"))
    engine.step()
    request = engine.requests["a"]
    engine.abort_request("a")
    engine.abort_request("a")  # twice is no error, and neither is a name nobody has
    engine.abort_request("nobody")
    done, seen = run(engine)
    assert list(done) == ["b"]
    assert {out.request_id for out in seen} == {"b"}
    assert request.get_seqs()[0].status is SequenceStatus.FINISHED_ABORTED


def test_metrics_are_in_order(engine):
    engine.add_request("r", "x", params(max_tokens=5, ignore_eos=True))
    metrics = run(engine)[0]["r"].metrics
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.finished_time
    assert metrics.num_output_tokens == 5
    assert metrics.ttft >= 0
    assert metrics.tpot == pytest.approx((metrics.finished_time - metrics.first_token_time) / 4)


def test_a_preallocated_cache_never_grows_while_a_sequence_runs(engine):
    engine.add_request("r", "x", params(max_tokens=20, ignore_eos=True))
    engine.step()
    before = [layer.kv_cache.data_ptr() for layer in engine.runner.kv_cache.layers]
    run(engine)
    assert [layer.kv_cache.data_ptr() for layer in engine.runner.kv_cache.layers] == before


def test_fields_that_are_set_after_construction_count_and_are_checked(engine):
    mine = params(max_tokens=2, ignore_eos=True)
    mine.n, mine.seed = 3, 5
    engine.add_request("r", "x", mine)
    assert len(run(engine)[0]["r"].outputs) == 3
    mine.top_p = 7.0
    with pytest.raises(ValueError, match=r"^top_p must be in \(0, 1\], got 7.0"):
        engine.add_request("r", "x", mine)
    mine.top_p, mine.stop, mine.best_of = 1.0, "x", 2
    with pytest.raises(ValueError, match=r"^best_of \(2\) must be >= n \(3\)$"):
        engine.add_request("r", "x", mine)
    assert not engine.has_unfinished_requests()
