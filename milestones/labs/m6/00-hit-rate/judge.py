from dataclasses import fields

from folovllm.engine.stats import EngineStats
from lab_judge import expect, invariant


def stats(queries, hits):
    """Of an engine that has done nothing else."""
    zeros = {field.name: 0 for field in fields(EngineStats)}
    return EngineStats(**{**zeros, "prefix_cache_queries": queries, "prefix_cache_hits": hits})


@invariant(1)
def test_a_quarter_was_found():
    expect(stats(queries=400, hits=100).prefix_hit_rate, 0.25)


@invariant(1)
def test_none_and_all():
    expect([stats(400, 0).prefix_hit_rate, stats(400, 400).prefix_hit_rate], [0.0, 1.0])


@invariant(1)
def test_a_share_is_not_rounded():
    expect([stats(3, 1).prefix_hit_rate, stats(1, 1).prefix_hit_rate], [1 / 3, 1.0])


@invariant(2)
def test_before_any_prompt():
    expect(stats(queries=0, hits=0).prefix_hit_rate, 0.0)
