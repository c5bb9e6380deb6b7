"""A prompt that overflows in an early chunk fails with that chunk: what comes behind it is not computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import EngineConfig, LLMEngine, SamplingParams
from folovllm.errors import LogitsNotFiniteError
from folovllm.models.decoder import DecoderForCausalLM
from tests.m1.overflow import BOMB, make_overflow_model
from tests.m1.support import run
from tests.m2.support import assert_idle, counting_forwards
from tests.m4.cuda_support import replaced

LAST = 53


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


def test_a_chunk_is_judged_by_its_last_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts of eight tokens, in chunks of four. In the second one's first chunk the last token becomes NaN, and
    no other: where chunks are longer, those before it lie in tiles of their own."""
    config = {"enable_chunked_prefill": True, "long_prefill_token_threshold": 4, "dtype": "float32", "device": "cpu"}
    folder = make_overflow_model(tmp_path)
    engine = LLMEngine(EngineConfig.from_kwargs(model=str(folder), max_num_partial_prefills=2, **config))

    def forward(old: Any, self: Any, input_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        hidden = old(self, input_ids, *rest).clone()
        hidden[input_ids == LAST] = torch.nan
        return hidden

    replaced(DecoderForCausalLM, "forward", forward, monkeypatch)
    engine.add_request("good", [40, 41, 42, 43, 44, 45, 46, 47], SamplingParams(temperature=0, max_tokens=2))
    engine.add_request("bad", [50, 51, 52, LAST, 54, 55, 56, 57], SamplingParams(temperature=0, max_tokens=2))
    with pytest.raises(LogitsNotFiniteError, match="^request 'bad': its logits"):
        engine.step()
    run(engine)
    assert_idle(engine)
