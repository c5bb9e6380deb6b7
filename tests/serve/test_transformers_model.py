"""A folder whose layers are computed by transformers' code, behind the server: Gemma 2's windows and soft-cap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from folovllm.core.draft_length import DraftLength
from tests.helpers import add_byte_tokenizer, hf_greedy
from tests.m11.models.tiny_types import TYPES
from tests.serve.support import Running, running

PROMPT = "ab ab ab ab ab ab ab ab "  # longer than a window
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("gemma2")
    config = transformers.AutoConfig.for_model("gemma2", **{**TYPES["gemma2"], "vocab_size": 257})
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    made.generation_config = transformers.GenerationConfig(eos_token_id=None, pad_token_id=0)
    made.save_pretrained(folder)
    add_byte_tokenizer(folder)
    return made, folder


@pytest.fixture(scope="module")
def server(model: tuple[Any, Path]) -> Iterator[Running]:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    engine = {"model": str(model[1]), "speculative_config": drafts, "max_model_len": 128, "block_size": 4}
    with running(engine=engine, chat_template=TEMPLATE) as server:
        server.llm.engine.scheduler.drafts.length = DraftLength(3, None)  # always three: no clock decides
        yield server


def said(model: Any, prompt: str, count: int) -> str:
    """By generate()."""
    return bytes(hf_greedy(model, list(prompt.encode()), count)).decode(errors="replace")


def test_chat_and_completions_say_what_generate_says(model: tuple[Any, Path], server: Running) -> None:
    """As a whole and in pieces, with drafts that are right and prompts that are in the cache."""
    client, greedy = server.client(), {"model": "embedded", "temperature": 0, "max_tokens": 24}
    wanted = said(model[0], PROMPT, 24)
    message = [{"role": "user", "content": PROMPT}]
    for _ in range(2):
        assert client.completions.create(prompt=PROMPT, **greedy).choices[0].text == wanted
        assert client.chat.completions.create(messages=message, **greedy).choices[0].message.content == wanted
        pieces = [each.choices[0].text for each in client.completions.create(prompt=PROMPT, stream=True, **greedy)]
        assert "".join(pieces) == wanted
        chunks = client.chat.completions.create(messages=message, stream=True, **greedy)
        pieces = [each.choices[0].delta.content or "" for each in chunks]
        assert len(pieces) > 3
        assert "".join(pieces) == wanted
    stats = server.llm.stats()
    assert stats.prefix_cache_hits > 0
    assert stats.spec_decode.num_accepted_tokens > 0
