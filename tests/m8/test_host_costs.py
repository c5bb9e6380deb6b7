"""The host's part of a step, measured with a clock that is told what to say."""

from __future__ import annotations

import pytest

from folovllm.core.draft_length import HostCosts, StepCosts
from folovllm.engine.step_costs import STEPS, measure_host_costs
from folovllm.spec_decode.metrics import SpecDecodingStats
from tests.m6.support import caching_engine

GUESSES = {"method": "ngram", "num_speculative_tokens": 3}


class Clock:
    """A step of one sequence takes 5 ms, and one of 16 takes 12, with guesses 7 and 18.5. The fastest count: others are
    held up."""

    def __init__(self) -> None:
        taken = [[0.001, *[seconds + 0.002] * (STEPS - 2), seconds] for seconds in (0.005, 0.012, 0.007, 0.0185)]
        self.readings = iter([reading for steps in taken for seconds in steps for reading in (0.0, seconds)])

    def __call__(self) -> float:
        return next(self.readings)


def test_two_batches_tell_what_a_step_a_token_and_guessing_cost(text_model_folder) -> None:
    """The model takes 1 ms for 1 row, 2 for 2 and for 16, 4 for 32. So the host takes 4 and 10 ms, .4 for each token;
    with guesses 5 and 14.5, which is 1 and 4.5 more."""
    engine = caching_engine(text_model_folder, speculative_config=GUESSES, num_kv_blocks=64)
    costs = StepCosts([1, 2, 16, 32], [0.001, 0.002, 0.002, 0.004], [0.0] * 4)
    host = measure_host_costs(engine.core, costs, Clock())
    assert [host.fixed, host.per_token] == pytest.approx([0.0036, 0.0004])
    assert [host.proposing, host.proposing_per_seq] == pytest.approx([0.001 - 0.0035 / 15, 0.0035 / 15])
    assert not host.hidden


def test_measuring_leaves_nothing_behind(text_model_folder) -> None:
    engine = caching_engine(text_model_folder, speculative_config=GUESSES)
    stats = engine.stats()
    assert (stats.steps, stats.output_tokens, stats.prefix_cache_queries) == (0, 0, 0)
    assert (stats.kv_blocks_used, stats.kv_blocks_cached) == (0, 0)
    assert stats.spec_decode == SpecDecodingStats(0, 0, (0, 0, 0))
    assert not engine.has_unfinished_requests()
    assert (len(engine.runner.batch._row_of), len(engine.runner.sampling._rows)) == (0, 0)
    engine.scheduler.check_invariants()


def test_where_the_model_takes_long_the_host_is_not_measured(text_model_folder) -> None:
    engine = caching_engine(text_model_folder, speculative_config=GUESSES)
    costs = StepCosts([1, 8], [0.1, 0.1], [0.0, 0.0])
    assert measure_host_costs(engine.core, costs, Clock()) == HostCosts()
