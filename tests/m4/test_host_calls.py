"""What the host does for one more sequence in a decode step, in calls: deterministic, where its time would not be.

At 256 sequences a call that every one of them makes is a hundred microseconds of a step, and the step waits for them
where the device is faster than the host.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from folovllm import LLM, LLMEngine, SamplingParams
from tests.helpers import make_hf_folder

STEPS = 16  # a block's tokens, so that every sequence opens one block
MEASURED = ("core", "engine", "worker", "request.py", "outputs.py", "<string>")  # not the model's own calls


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("model"))


def decoding_engine(folder: Path, batch: int) -> LLMEngine:
    llm = LLM(
        str(folder), skip_tokenizer_init=True, dtype="float32", device="cpu", async_scheduling=True, block_size=STEPS,
        max_num_seqs=batch, num_kv_blocks=10 * batch + 400, max_model_len=64, max_num_batched_tokens=2048,
    )  # fmt: skip
    params = SamplingParams(temperature=0.6, max_tokens=60, ignore_eos=True)
    for number in range(batch):
        llm.engine.add_request(str(number), [5 + number % 50] * 3, params)
    for _ in range(4):
        llm.engine.step()
    return llm.engine


def calls_of_steps(engine: LLMEngine) -> Counter[str]:
    """Calls of Python functions ("python") and of functions in C ("c") that the host's own code makes or is."""
    counts: Counter[str] = Counter()

    def see(frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename.rpartition("folovllm/")[2]
        if name.startswith(MEASURED) and event in ("call", "c_call"):
            counts["python" if event == "call" else "c"] += 1

    sys.setprofile(see)
    try:
        for _ in range(STEPS):
            engine.step()
    finally:
        sys.setprofile(None)
    return counts


def test_one_more_sequence_costs_a_step_so_many_calls(folder: Path) -> None:
    """54.6 of Python's and 32 of C's, once. An exercise solved in another way may make a few more: an any()."""
    few, many = (calls_of_steps(decoding_engine(folder, batch)) for batch in (8, 40))
    of_one = {kind: (many[kind] - few[kind]) / STEPS / 32 for kind in ("python", "c")}
    assert 5 < of_one["python"] <= 30
    assert 5 < of_one["c"] <= 20
