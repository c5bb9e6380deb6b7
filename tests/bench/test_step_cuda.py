"""The clock of `bench step` on the stand-in for a GPU."""

from __future__ import annotations

from folovllm import SamplingParams
from folovllm.bench.step import StepClock
from folovllm.engine.llm_engine import LLMEngine
from tests.fake_cuda import FakeCuda
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import make_engine

SMALL = {"max_num_seqs": 2, "num_kv_blocks": 20, "max_model_len": 24}
PROMPT = [5, 6, 7, 8, 9]
GREEDY = SamplingParams(temperature=0, max_tokens=6)


def test_the_clock_of_a_step_sees_a_replay(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    """It passes neither forward() nor compute_logits()."""
    clock = StepClock()
    engine = LLMEngine(make_engine(small_oracle, **SMALL).config, choose=clock.choose)
    engine.observers.append(clock)
    engine.add_request("a", PROMPT, GREEDY)
    clock.step(engine)
    before = fake_cuda.launches["graph"]
    step = clock.step(engine)
    assert fake_cuda.launches["graph"] == before + 1
    assert 0 < step["forward"] < step["step"]
