"""A step with draft tokens waits for the device once, on the stand-in for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from tests.fake_cuda import FakeCuda
from tests.m8.support import Prophet, guess_always
from tests.m8.test_speculation_cuda import PROMPTS, SMALL, folder
from tests.m8.test_speculation_engine import answers_of

pytest.importorskip("triton")
__all__ = ["folder"]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.0)
SEEDED = SamplingParams(max_tokens=6, ignore_eos=True, seed=3, top_k=9)


def steps_with_drafts(llm: LLM, cuda: FakeCuda) -> list[tuple[list[str], set[str]]]:
    """Of each such step: what the host waits for, and what is launched; filled while the engine runs."""
    found: list[tuple[list[str], set[str]]] = []
    launch = llm.engine.runner.execute_model

    def watched(scheduled: Any) -> Any:
        cuda.reset_counts()
        step = launch(scheduled)
        if scheduled.num_lookahead_tokens:
            found.append(([what for what, _ in cuda.waits], set(cuda.launches)))
        return step

    llm.engine.runner.execute_model = watched  # type: ignore[method-assign]
    return found


def test_all_rows_are_drawn_at_once_inside_of_the_graph(folder: Path, fake_cuda: FakeCuda) -> None:
    """Greedy ones and seeded ones; the tokens are those without drafts."""
    asked = [GREEDY, SEEDED]
    plain = LLM(str(folder), **SMALL).generate(PROMPTS, asked, use_tqdm=False)
    llm = LLM(str(folder), speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **SMALL)
    guess_always(llm.engine, Prophet(answers_of(plain)))
    steps = steps_with_drafts(llm, fake_cuda)
    guessed = llm.generate(PROMPTS, asked, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in guessed] == [output.outputs[0].token_ids for output in plain]
    assert sum(llm.engine.scheduler.drafts.num_accepted_per_pos) >= 3
    assert steps
    for waits, launches in steps:
        assert waits == ["tolist"]
        assert not launches & {"_sample_kernel", "argmax"}
