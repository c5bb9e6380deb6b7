"""Traces: what a record says is what the scheduler did."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, AsyncLLM, LLMEngine, SamplingParams
from folovllm.tracing.attach import TraceFile, attach
from folovllm.tracing.lanes import lanes_of
from folovllm.tracing.nvtx import attach_nvtx
from folovllm.tracing.page import page_data
from folovllm.tracing.reader import Trace, blocks_of, num_drawn, read_trace, rows_of
from folovllm.tracing.summary import latencies, summarize, when_drawn
from folovllm.tracing.writer import TraceWriter
from tests.m2.support import assert_idle
from tests.m6.support import caching_engine
from tests.tracing.support import BLOCK_SIZE, Books, Simulated, check_step

PROMPTS = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9], [7] * 23, list(range(20, 60))]


def run_engine(engine: LLMEngine, path: Path, params: list[SamplingParams]) -> tuple[Trace, Books, dict[str, Any]]:
    traced = attach(engine, TraceWriter(path))
    books = Books(engine.scheduler)
    outputs: dict[str, Any] = {}
    for number, one in enumerate(params):
        engine.add_request(f"r{number}", PROMPTS[number % len(PROMPTS)], one)
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    traced.close()
    return read_trace(path), books, outputs


MIX = [
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(n=3, max_tokens=18, seed=1),
    SamplingParams(use_beam_search=True, best_of=3, n=2, max_tokens=12, temperature=0),
    SamplingParams(temperature=0, max_tokens=20),
    SamplingParams(n=2, max_tokens=9, seed=2),
    SamplingParams(temperature=0, max_tokens=30),
]
SAMPLED = [one for one in MIX if not one.use_beam_search]


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ({}, MIX),
        ({"preemption_mode": "swap"}, MIX),
        ({"async_scheduling": True}, SAMPLED),
        ({"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_num_batched_tokens": 256}, MIX),
    ],
    ids=["recompute", "swap", "ahead", "plain"],
)
def test_a_trace_has_the_schedulers_own_books(text_model_folder, tmp_path, options, params) -> None:
    """Forks, beams, preemption, a cache that evicts: tables, blocks and rows are equal at every step."""
    options = {"max_num_batched_tokens": 48, **options}
    engine = caching_engine(text_model_folder, block_size=4, num_kv_blocks=26, **options)
    trace, truth, outputs = run_engine(engine, tmp_path / "run.gz", params)
    drawn: dict[str, list[int]] = {}
    for (record, tables, findable), books in zip(blocks_of(trace), truth.steps, strict=True):
        check_step(record, tables, findable, books, 26)
        for row in rows_of(record):
            drawn.setdefault(row.seq_id, []).extend(row.token_ids)
    ended = [seq for step in trace.steps for seq, _ in step.ended]
    assert sorted(ended) == sorted({seq for step in trace.steps for seq in step.seq_ids})
    assert {lane.reason for lane in lanes_of(trace)} <= {"length", "stop", "ignored"}
    assert sum(len(step.preempted) for step in trace.steps) > 0
    for number, one in enumerate(params):
        if not one.use_beam_search:  # a seq_id ends in its number, and so do the outputs
            got = {out.index: out.token_ids for out in outputs[f"r{number}"].outputs}
            assert {index: drawn[f"r{number}-{index}"][: len(ids)] for index, ids in got.items()} == got


def test_a_record_leaves_out_what_did_not_happen(text_model_folder, tmp_path) -> None:
    engine = caching_engine(text_model_folder, block_size=16)
    run_engine(engine, tmp_path / "run.gz", [SamplingParams(temperature=0, max_tokens=9)] * 2)
    third = json.loads(gzip.decompress((tmp_path / "run.gz").read_bytes()).splitlines()[4])
    rows = {"seq_ids", "num_computed_tokens", "num_scheduled_tokens", "num_prompt_tokens", "token_ids"}
    assert set(third) == {"type", "step", "t", "times", "free", "running"} | rows


def test_parts_of_a_step_follow_one_another(tmp_path) -> None:
    load = Simulated(tmp_path / "sim.gz")
    load.add("a", [1] * 10, 3)
    load.run()
    trace = read_trace(tmp_path / "sim.gz")
    assert [step.t for step in trace.steps] == [0, 10_000, 20_000]
    assert [step.times for step in trace.steps] == [[0, 0, 10_000, 0, 0]] * 3
    assert [when_drawn(step) for step in trace.steps] == [10_000, 20_000, 30_000]
    assert trace.header.clock == "simulated"


def test_latencies_are_counted_from_the_arrival(tmp_path) -> None:
    """Two requests of 40 prompt tokens and a budget of 64: the second one's prompt takes another step."""
    load = Simulated(tmp_path / "sim.gz")
    load.add("a", [1] * 40, 3)
    load.add("b", [2] * 40, 2)
    load.run()
    first, second = latencies(read_trace(tmp_path / "sim.gz"))
    assert (first.ttft, first.gaps) == (10_000, [10_000, 10_000])
    assert (second.ttft, second.gaps) == (20_000, [10_000])


def test_a_simulated_trace_has_what_the_prefix_cache_found(tmp_path) -> None:
    load = Simulated(tmp_path / "sim.gz")
    load.add("a", [5] * 40, 2)
    while load.scheduler.has_unfinished_requests():
        load.step()
    load.add("b", [5] * 40, 2)
    load.run()
    trace = read_trace(tmp_path / "sim.gz")
    assert [each for step in trace.steps for each in step.admitted] == [["a-0", 0], ["b-0", 2 * BLOCK_SIZE]]
    assert summarize(trace)["found_tokens"] == 32


def test_tracing_comes_off_without_a_trace(text_model_folder, tmp_path) -> None:
    engine = caching_engine(text_model_folder)
    before = {name: dict(vars(owner)) for name, owner in vars(engine).items() if hasattr(owner, "__dict__")}
    attach(engine, TraceWriter(tmp_path / "run.gz")).close()
    assert before == {name: dict(vars(owner)) for name, owner in vars(engine).items() if hasattr(owner, "__dict__")}


def test_an_abort_between_two_steps_is_in_the_next_record(tmp_path) -> None:
    load = Simulated(tmp_path / "sim.gz")
    load.add("a", [1] * 8, 5)
    load.add("b", [2] * 8, 5)
    load.step()
    load.scheduler.abort(load.requests["a"])
    load.step()
    load.close()
    trace = read_trace(tmp_path / "sim.gz")
    assert (trace.steps[1].finished, trace.steps[1].ended) == (["a-0"], [])
    assert [(lane.id, lane.reason, lane.ended_at) for lane in lanes_of(trace)] == [
        ("a-0", "abort", 0),
        ("b-0", None, None),
    ]
    assert [news.get("left") for news in page_data(trace)["news"]] == [None, [(0, "abort")]]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_stop_string_may_be_found_in_a_sequence_that_was_preempted_meanwhile(
    text_model_folder, tmp_path, mode
) -> None:
    """A client elsewhere reads a step's tokens while the next step is made. The others go on."""
    engine = caching_engine(text_model_folder, preemption_mode=mode, num_kv_blocks=20, block_size=4)
    traced = attach(engine, TraceWriter(tmp_path / "run.gz"))
    params = SamplingParams(n=2, max_tokens=24, seed=0, ignore_eos=True)
    for number, name in enumerate("abc"):
        engine.core.add_request(engine.input_processor.process(name, PROMPTS[number], params))
    preempted = None
    while engine.requests:
        engine.core.step()
        seqs = [seq for request in engine.requests.values() for seq in request.get_seqs() if seq.get_output_len()]
        preempted = preempted or next((seq for seq in seqs if seq.status.name in ("WAITING", "SWAPPED")), None)
        if preempted is not None:
            for _ in range(2):  # the second comes too late
                engine.core.abort_request(preempted.request_id, preempted.index)
            engine.scheduler.check_invariants()
    assert preempted is not None
    assert_idle(engine)
    traced.close()
    reasons = {lane.id: lane.reason for lane in lanes_of(read_trace(tmp_path / "run.gz"))}
    assert reasons.pop(preempted.seq_id) == "stop"
    assert list(reasons.values()) == ["length"] * 5


def test_an_id_that_comes_again_at_once_has_a_lane_each_time(text_model_folder, tmp_path) -> None:
    engine = caching_engine(text_model_folder)
    traced = attach(engine, TraceWriter(tmp_path / "run.gz"))
    for num_steps in (9, 9, 1, 0, 9):
        engine.abort_request("a")
        engine.add_request("a", [1, 2], SamplingParams(max_tokens=3, temperature=0))
        for _ in range(num_steps):
            engine.step()
    traced.close()
    trace = read_trace(tmp_path / "run.gz")
    lanes = [(lane.reason, lane.ended_at, len(lane.segments)) for lane in lanes_of(trace)]
    assert lanes == [("length", 2, 2), ("length", 5, 2), ("abort", 6, 1), ("abort", 6, 0), ("length", 9, 2)]
    news = page_data(trace)["news"]
    assert [(each["left"]) for each in news if "left" in each] == [[(2, "abort"), (3, "abort")]]
    assert [(each["ended"]) for each in news if "ended" in each] == [[(0, "length")], [(1, "length")], [(4, "length")]]


def test_a_failed_step_starts_over_in_the_trace_too(text_model_folder, tmp_path) -> None:
    engine = caching_engine(text_model_folder, block_size=4)
    traced = attach(engine, TraceWriter(tmp_path / "run.gz"))
    engine.add_request("a", PROMPTS[0], SamplingParams(max_tokens=4, temperature=0))
    engine.step()
    execute = engine.runner.execute_model
    engine.runner.execute_model = lambda scheduled: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    engine.core.step()
    engine.runner.execute_model = execute  # type: ignore[method-assign]
    engine.abort_request("a")
    engine.add_request("b", PROMPTS[1], SamplingParams(max_tokens=2, temperature=0))
    while engine.has_unfinished_requests():
        engine.step()
    traced.close()
    trace = read_trace(tmp_path / "run.gz")
    assert [step.failed for step in trace.steps] == [False, True, False, False]
    assert [list(tables) for _, tables, _ in blocks_of(trace)] == [["a-0"], ["a-0"], ["b-0"], ["b-0"]]
    assert [(lane.id, lane.reason) for lane in lanes_of(trace)] == [("a-0", "abort"), ("b-0", "length")]


def test_a_reset_of_the_cache_is_in_the_trace(text_model_folder, tmp_path) -> None:
    engine = caching_engine(text_model_folder, block_size=4)
    run_engine(engine, tmp_path / "one.gz", [SamplingParams(max_tokens=8, temperature=0)])
    traced = attach(engine, TraceWriter(tmp_path / "two.gz"))
    engine.reset_prefix_cache()
    engine.add_request("b", PROMPTS[0], SamplingParams(max_tokens=2, temperature=0))
    while engine.has_unfinished_requests():
        engine.step()
    traced.close()
    first = read_trace(tmp_path / "two.gz").steps[0]
    assert first.cleared
    assert first.findable == 0


def test_without_texts_a_trace_has_no_prompt_and_no_token(text_model_folder, tmp_path) -> None:
    """But how many there are, and all that was decided."""
    runs = {}
    for texts in (True, False):
        engine = caching_engine(text_model_folder, block_size=4)
        traced = attach(engine, TraceWriter(tmp_path / f"{texts}.gz"), texts=texts)
        engine.add_request("a", [1, 2, 3, 4, 5, 6], SamplingParams(n=2, max_tokens=5, seed=0))
        while engine.has_unfinished_requests():
            engine.step()
        traced.close()
        runs[texts] = read_trace(tmp_path / f"{texts}.gz")
    arrival = runs[False].steps[0].arrived[0]
    assert (arrival.prompt, arrival.prompt_ids, arrival.context, arrival.prompt_tokens) == (None, [], [], 6)
    assert {token for step in runs[False].steps for token in step.token_ids} == {-1}
    assert runs[True].steps[0].arrived[0].prompt_ids == [1, 2, 3, 4, 5, 6]
    said = [[num_drawn(step) for step in trace.steps] for trace in runs.values()]
    assert said[0] == said[1] == [2] * 5
    assert [step.tables for step in runs[True].steps] == [step.tables for step in runs[False].steps]


def test_nvtx_needs_a_gpu(text_model_folder) -> None:
    with pytest.raises(ValueError, match="nvtx must be off on cpu"):
        LLM(str(text_model_folder), observers=[attach_nvtx])


def test_nvtx_ranges_are_nested_and_all_are_closed(text_model_folder, monkeypatch) -> None:
    """On a stand-in: what a profiler would see."""
    import torch

    seen: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("/"))
    engine = caching_engine(text_model_folder)
    engine.device = torch.device("cuda")
    stop = attach_nvtx(engine)
    engine.add_request("a", PROMPTS[0], SamplingParams(max_tokens=1, temperature=0))
    engine.step()
    whole = ["step", "schedule", "/", "launch", "/", "update", "/", "/", "output", "/"]
    assert seen == whole
    engine.add_request("b", PROMPTS[0], SamplingParams(max_tokens=1, temperature=0))
    with monkeypatch.context() as failing:
        failing.setattr(engine.runner.model, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
        assert seen[10:] == ["step", "schedule", "/", "launch", "/", "/", "output", "/"]
    stop()
    engine.add_request("c", PROMPTS[0], SamplingParams(max_tokens=1, temperature=0))
    engine.step()
    assert len(seen) == 18


def test_async_llm_writes_a_trace(text_model_folder, tmp_path) -> None:
    async def serve() -> None:
        async with AsyncLLM(str(text_model_folder), dtype="float32", observers=[trace]) as llm:
            async for _ in llm.generate("hello", SamplingParams(max_tokens=3, temperature=0)):
                pass

    trace = TraceFile(tmp_path / "run.gz")
    asyncio.run(serve())
    trace.close()
    written = read_trace(tmp_path / "run.gz")
    assert written.end is not None
    assert [arrival.prompt for step in written.steps for arrival in step.arrived] == ["hello"]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("part", "name"), [("scheduler", "schedule"), ("runner", "execute_model")])
def test_a_request_that_comes_before_a_failed_step_is_in_the_trace_once(
    text_model_folder, tmp_path, part, name
) -> None:
    engine = caching_engine(text_model_folder, block_size=4)
    traced = attach(engine, TraceWriter(tmp_path / "run.gz"))
    engine.add_request("a", PROMPTS[0], SamplingParams(max_tokens=3, temperature=0))
    engine.step()
    engine.add_request("b", PROMPTS[1], SamplingParams(max_tokens=2, temperature=0))
    with pytest.MonkeyPatch.context() as failing:
        failing.setattr(getattr(engine, part), name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    for _ in range(4):
        engine.step()
    traced.close()
    trace = read_trace(tmp_path / "run.gz")
    assert [arrival.id for step in trace.steps for arrival in step.arrived] == ["a", "b"]
    assert {lane.id: lane.reason for lane in lanes_of(trace)}["b-0"] == "length"
