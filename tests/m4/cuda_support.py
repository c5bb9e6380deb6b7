"""Engines on the stand-in for a CUDA device, and the CPU engine that they must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from folovllm import LLM, LLMEngine, SamplingParams
from tests.fake_cuda import FakeCuda
from tests.m3.oracle import Oracle
from tests.m4.ahead_support import told

SETTINGS: dict[str, Any] = {
    "num_kv_blocks": 60,
    "block_size": 4,
    "max_num_seqs": 4,
    "max_model_len": 40,
    "swap_space": 0.001,
}
PROMPTS = [[i + 3] * (1 + 5 * (i % 3)) + [9, i] for i in range(4)]


def make_engine(oracle: Oracle, device: str = "cuda", **settings: Any) -> LLMEngine:
    settings = {**SETTINGS, **settings}
    return LLM(str(oracle.folder), skip_tokenizer_init=True, dtype="float32", device=device, **settings).engine


def serve(engine: LLMEngine, requests: list[tuple[list[int], SamplingParams]]) -> list[dict[str, Any]]:
    """All at once, to the end: what each of them says."""
    done: dict[str, Any] = {}
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(str(number), prompt, params)
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step() if output.finished}
    return [told(done[str(number)]) for number in range(len(requests))]


def serve_on_cpu(oracle: Oracle, requests: list[Any], **settings: Any) -> list[dict[str, Any]]:
    """The CPU engine, which draws as CUDA does: then a seed means the same tokens."""
    engine = make_engine(oracle, "cpu", **settings)
    engine.runner.sampling.sampler.draw = "exponential_race"
    return serve(engine, requests)


@contextmanager
def waits_of_launches(engine: LLMEngine, cuda: FakeCuda) -> Iterator[list[tuple[str, str]]]:
    """What the host waits for between being told a step and having queued it: nothing, if all is well."""
    found: list[tuple[str, str]] = []
    launch = engine.runner.execute_model

    def launching(scheduled: Any) -> Any:
        before = len(cuda.waits)
        step = launch(scheduled)
        found.extend(cuda.waits[before:])
        return step

    engine.runner.execute_model = launching
    try:
        yield found
    finally:
        engine.runner.execute_model = launch


def replaced(owner: Any, name: str, new: Callable[..., Any], monkeypatch: Any) -> None:
    """`new` is given what it replaces, and its arguments."""
    old = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: new(old, *args, **kwargs))
