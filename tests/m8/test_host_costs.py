"""The host's part of a step, measured with a clock that is told what to say."""

from __future__ import annotations

import pytest

from folovllm.core.draft_length import DraftLength, HostCosts, StepCosts
from folovllm.engine.host_costs import STEPS, measure_host_costs
from tests.m6.support import caching_engine

GUESSES = {"method": "ngram", "num_speculative_tokens": 3}


class Clock:
    """A step of one sequence takes 5 ms, and one of 16 takes 12; the fastest of them, for others are held up."""

    def __init__(self) -> None:
        taken = [[0.009, *[0.007] * (STEPS - 2), 0.005], [0.020, 0.012, *[0.030] * (STEPS - 2)]]
        self.readings = iter([reading for steps in taken for seconds in steps for reading in (0.0, seconds)])

    def __call__(self) -> float:
        return next(self.readings)


def test_two_batches_tell_what_a_step_and_what_a_token_costs(text_model_folder) -> None:
    """The model takes 1 ms for one and 1.5 for 16, so the host takes 4 and 10.5: 3.57 and .43 for each token."""
    engine = caching_engine(text_model_folder, speculative_config=GUESSES)
    costs = StepCosts([1, 16], [0.001, 0.0015], [0.0, 0.0])
    engine.scheduler.draft_length = DraftLength(3, costs)
    measure_host_costs(engine, Clock())
    assert costs.host.per_token == pytest.approx(0.0065 / 15)
    assert costs.host.fixed == pytest.approx(0.004 - 0.0065 / 15)
    assert not costs.host.hidden
    assert engine.scheduler.draft_length.costs is costs


def test_measuring_leaves_nothing_behind(text_model_folder) -> None:
    engine = caching_engine(text_model_folder, speculative_config=GUESSES)
    stats = engine.stats()
    assert (stats.steps, stats.output_tokens, stats.prefix_cache_queries) == (0, 0, 0)
    assert (stats.kv_blocks_used, stats.kv_blocks_cached) == (0, 0)
    assert not engine.has_unfinished_requests()
    engine.scheduler.check_invariants()


def test_where_the_model_takes_long_the_host_is_not_measured(text_model_folder) -> None:
    engine = caching_engine(text_model_folder, speculative_config=GUESSES)
    costs = StepCosts([1, 8], [0.1, 0.1], [0.0, 0.0])
    engine.scheduler.draft_length = DraftLength(3, costs)
    measure_host_costs(engine, Clock())
    assert costs.host == HostCosts()
