"""A prompt that overflows in an early chunk fails with that chunk: what comes behind it is not computed."""

from __future__ import annotations

import pytest

from folovllm import EngineConfig, LLMEngine, SamplingParams
from folovllm.errors import LogitsNotFiniteError
from tests.m1.overflow import BOMB, make_overflow_model
from tests.m1.support import run
from tests.m2.support import assert_idle, counting_forwards


@pytest.mark.parametrize("place", [0, 3, 4, 15])
def test_a_prompt_fails_with_the_chunk_that_overflows(tmp_path, place):
    folder = make_overflow_model(tmp_path, max_position_embeddings=64)
    config = {"enable_chunked_prefill": True, "long_prefill_token_threshold": 4, "dtype": "float16", "device": "cpu"}
    engine = LLMEngine(EngineConfig.from_kwargs(model=str(folder), **config))
    prompt = list(range(40, 56))
    prompt[place] = BOMB
    engine.add_request("bad", prompt, SamplingParams())
    with counting_forwards(engine) as sizes, pytest.raises(LogitsNotFiniteError, match="^request 'bad': its logits"):
        run(engine)
    assert sizes == [4] * (place // 4 + 1)
    assert_idle(engine)
