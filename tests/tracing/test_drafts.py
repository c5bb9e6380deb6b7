"""Traces, counts and metrics of an engine with draft tokens: what was drafted, and what of it was accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from folovllm import LLMEngine, SamplingParams
from folovllm.core.draft_length import DraftLength
from folovllm.engine.snapshots import Steps, snapshot_of
from folovllm.entrypoints.metrics_reader import Vector, metrics_of
from folovllm.spec_decode.metrics import SpecDecodingStats
from folovllm.tracing.attach import attach
from folovllm.tracing.lanes import lanes_of
from folovllm.tracing.page import page_data
from folovllm.tracing.reader import blocks_of, read_trace, rows_of
from folovllm.tracing.summary import latencies, summarize
from folovllm.tracing.writer import TraceWriter
from tests.m6.support import caching_engine
from tests.tracing.support import Books, check_step

PROMPTS = [[1, 2, 3, 1, 2], [7] * 9, list(range(20, 50)), [9, 8, 9, 8]]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)  # a random model soon repeats itself


def drafting_engine(folder: Path, most: int = 3, num_kv_blocks: int = 40) -> LLMEngine:
    config = {"method": "ngram", "num_speculative_tokens": most, "prompt_lookup_min": 1}
    engine = caching_engine(folder, block_size=4, num_kv_blocks=num_kv_blocks, speculative_config=config)
    engine.scheduler.drafts.length = DraftLength(most, None)  # whatever the machine is
    return engine


def run(engine: LLMEngine, params: SamplingParams = GREEDY) -> dict[str, list[int]]:
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(f"r{number}", prompt, params)
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        tokens |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        engine.scheduler.check_invariants()
    return tokens


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=40, seed=3, stop_token_ids=[5, 6, 7])], ids=str)
def test_a_trace_has_the_drafts_the_tokens_and_the_blocks(text_model_folder, tmp_path, params) -> None:
    engine = drafting_engine(text_model_folder)
    tracer, proposed = attach(engine, TraceWriter(tmp_path / "run.gz")), {}
    books, speculation = Books(engine.scheduler), engine.runner.speculation
    propose = speculation.propose

    def proposing(output):
        drafts = propose(output)
        proposed[id(output)] = {seq_id: len(draft) for seq_id, draft in drafts.items() if draft}
        return drafts

    speculation.propose = proposing

    tokens = run(engine, params)
    tracer.close()
    trace, drawn = read_trace(tmp_path / "run.gz"), {}
    for (record, tables, findable), truth in zip(blocks_of(trace), books.steps, strict=True):
        check_step(record, tables, findable, truth, 40)
        assert record.drafted == proposed.get(id(truth["output"]), {})
        for row in rows_of(record):
            drawn.setdefault(row.seq_id, []).extend(row.token_ids)
    assert {seq_id.removesuffix("-0"): ids for seq_id, ids in drawn.items()} == tokens
    drafts = engine.stats().spec_decode
    found = summarize(trace)
    assert found["output_tokens"] == engine.stats().output_tokens == sum(map(len, tokens.values()))
    assert (found["draft_tokens"], found["draft_tokens_accepted"] > 0) == (drafts.num_draft_tokens, True)
    assert sum(len(times) for one in latencies(trace) for times in one.drawn.values()) == found["output_tokens"]


def test_a_run_of_accepted_drafts_is_one_segment_on_the_time_line(text_model_folder, tmp_path) -> None:
    engine = drafting_engine(text_model_folder, num_kv_blocks=100)  # none is preempted, so each prompt is computed once
    tracer = attach(engine, TraceWriter(tmp_path / "run.gz"))
    tokens = run(engine)
    tracer.close()
    trace = read_trace(tmp_path / "run.gz")
    for lane in lanes_of(trace):
        decodes = [segment for segment in lane.segments if segment.kind == "decode"]
        assert sum(segment.num_tokens for segment in decodes) == len(tokens[lane.id.removesuffix("-0")]) - 1
        runs = [segment for segment in decodes if segment.num_tokens > segment.last - segment.first + 1]
        assert runs
        assert all(segment.first == segment.last for segment in runs)
    data = page_data(trace)
    assert sum(data["steps"]["drawn"]) == sum(map(len, tokens.values()))


def test_stats_count_what_was_drafted_and_accepted(text_model_folder) -> None:
    engine = drafting_engine(text_model_folder)
    assert engine.stats().spec_decode == SpecDecodingStats(0, 0, (0, 0, 0))
    tokens = run(engine)
    stats, drafts = engine.stats(), engine.stats().spec_decode
    per_pos = drafts.num_accepted_tokens_per_pos
    assert list(per_pos) == sorted(per_pos, reverse=True)  # a draft token counts if those before it were right
    assert drafts.num_drafts >= per_pos[0] > 0
    assert 3 * drafts.num_drafts >= drafts.num_draft_tokens >= drafts.num_accepted_tokens
    assert drafts.acceptance_length == 1 + sum(per_pos) / drafts.num_drafts
    assert stats.output_tokens == sum(map(len, tokens.values()))


def test_metrics_have_vllms_names_and_a_place_for_each_position(text_model_folder) -> None:
    engine = drafting_engine(text_model_folder)
    run(engine)
    drafts = engine.stats().spec_decode
    found = {metric.name: metric for metric in metrics_of(engine.stats(), {})}
    assert found["vllm:spec_decode_num_drafts"].value == drafts.num_drafts
    assert found["vllm:spec_decode_num_draft_tokens"].value == drafts.num_draft_tokens
    assert found["vllm:spec_decode_num_accepted_tokens"].value == drafts.num_accepted_tokens
    per_pos = found["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(per_pos, Vector)
    assert per_pos.values == list(drafts.num_accepted_tokens_per_pos)


def test_without_drafts_there_is_nothing_of_it(text_model_folder) -> None:
    engine = caching_engine(text_model_folder, block_size=4)
    assert engine.stats().spec_decode is None
    assert not [metric.name for metric in metrics_of(engine.stats(), {}) if "spec" in metric.name]


def test_several_engines_drafts_are_added_up(text_model_folder) -> None:
    pytest.importorskip("fastapi")
    from folovllm.serving.openai.live import merged

    engine = drafting_engine(text_model_folder)
    run(engine)
    look = snapshot_of(engine)
    one, both = look.stats.spec_decode, merged([look, look])[0].spec_decode
    assert both.num_drafts == 2 * one.num_drafts
    assert both.num_accepted_tokens_per_pos == tuple(2 * count for count in one.num_accepted_tokens_per_pos)


def test_a_look_tells_how_many_tokens_a_step_brought(text_model_folder) -> None:
    engine = drafting_engine(text_model_folder)
    snapshot_of(engine)
    tokens = run(engine)
    (steps,) = engine.core.listeners
    assert isinstance(steps, Steps)
    brought: dict[str, int] = {}
    for step in steps.newest:
        for seq_id, _, num, prompt, _, draws in step["rows"]:
            brought[seq_id] = brought.get(seq_id, 0) + draws
            assert num == prompt or draws <= num
    assert {name.removesuffix("-0"): count for name, count in brought.items()} == {n: len(t) for n, t in tokens.items()}
