"""A vector through an adapter is the merged model's: mixed in one batch, with chunks and hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LoRARequest, PoolingParams
from folovllm.errors import ModelLoadError
from tests.m11.pooling_support import add_modules, close, embeddings, make_folder, prompts_that_begin_alike
from tests.m12.adapters import VOICES, make_adapter, with_adapter
from tests.m12.support import lora_engine


@pytest.mark.parametrize(("ending", "mode"), [("Model", "lasttoken"), ("ForCausalLM", "mean")])
def test_each_voice_embeds_as_the_merged_model(tmp_path: Path, ending: str, mode: str) -> None:
    """Adapters of a model without a head leave "model." out of their names, as its files do."""
    hf = make_folder(tmp_path / "model", ending)
    add_modules(tmp_path / "model", {"pooling_mode": mode}, "Normalize")
    prompts, voices = prompts_that_begin_alike(), dict[str | None, Any]()
    voices[None] = hf, None
    for number, (voice, (targets, config)) in enumerate(VOICES.items(), 1):
        path = make_adapter(tmp_path / voice, hf, targets, seed=number, **config)
        voices[voice] = with_adapter(hf, path), LoRARequest(voice, number, str(path))
    engine = lora_engine(tmp_path / "model", max_num_batched_tokens=40, num_kv_blocks=200)
    for _ in range(2):
        found: dict[str, list[float]] = {}
        for voice, (_, request) in voices.items():
            for number, prompt in enumerate(prompts):
                ids = {"prompt_token_ids": prompt}
                engine.add_request(f"{voice} {number}", ids, PoolingParams(), lora_request=request)
        while engine.has_unfinished_requests():
            found |= {output.request_id: output.pooling_output or [] for output in engine.step()}
        for voice, (model, _) in voices.items():
            base = model.base_model if ending == "ForCausalLM" else model
            got = torch.tensor([found[f"{voice} {number}"] for number in range(len(prompts))])
            close(got, embeddings(base, prompts, "LAST" if mode == "lasttoken" else "MEAN"))


def test_an_adapter_with_a_head_of_its_own_is_refused(tmp_path: Path) -> None:
    hf = make_folder(tmp_path / "model", "ForSequenceClassification", num_labels=2)
    path = make_adapter(tmp_path / "voice", hf, ("q_proj",), modules_to_save=["score"])
    engine = lora_engine(tmp_path / "model")
    with pytest.raises(ModelLoadError, match=r"modules_to_save must be \[\], got \['score'\]"):
        engine.add_request("a", [1], PoolingParams(), lora_request=LoRARequest("voice", 1, str(path)))
