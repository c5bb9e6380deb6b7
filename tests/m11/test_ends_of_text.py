"""What ends a text: the ids that the model's files name, and the tokenizer's eos_token."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.engine.input_processor import ends_of_text
from folovllm.model_loader.hf_config import load_generation_config


@pytest.mark.parametrize("end, is_told", [(5, True), (None, False), (10**6, False)])
def test_the_tokenizers_end_ends_a_text_where_it_can_be_drawn(end, is_told, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("folovllm"), "propagate", True)
    model = ModelConfig(EMBEDDED_MODEL)
    named = load_generation_config(model).eos_token_ids
    assert end not in named
    found = ends_of_text(model, SimpleNamespace(eos_token_id=end, eos_token="<end>"))
    assert found == named | ({end} if is_told else set())
    assert ("eos_token '<end>' (5) ends a text, too" in caplog.text) is is_told
