"""What the engine does not support yet must not be accepted in silence."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import EngineConfig, LLMEngine, SamplingParams
from folovllm.config import UNSUPPORTED

OTHER_THAN_DEFAULT: dict[str, Any] = {
    "block_size": 32,
    "gpu_memory_utilization": 0.5,
    "swap_space": 1.0,
    "enable_prefix_caching": True,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 8,
    "enable_chunked_prefill": True,
}


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_a_field_that_is_not_supported_is_refused_by_name(field, text_model_folder):
    value = OTHER_THAN_DEFAULT[field]
    config = EngineConfig.from_kwargs(model=str(text_model_folder), **{field: value})
    with pytest.raises(NotImplementedError, match=rf"^{field} is not supported yet, got {value}$"):
        LLMEngine(config)


def test_beam_search_is_refused(text_model_folder):
    engine = LLMEngine(EngineConfig.from_kwargs(model=str(text_model_folder)))
    with pytest.raises(NotImplementedError, match="Beam search is not supported"):
        engine.add_request("bad", [1], SamplingParams(use_beam_search=True, best_of=2))
    assert not engine.has_unfinished_requests()
