"""What the whole engine draws on a GPU has the distribution that Hugging Face's logits and the definitions give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from folovllm import LLM, SamplingParams
from tests.gpu.places import Place, on_every_place
from tests.helpers import make_hf_model
from tests.m1.sampling_reference import distribution

VOCAB = 256
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
KINDS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"temperature": 1.5, "top_k": 5},
    "top_p": {"temperature": 1.2, "top_p": 0.8},
    "min_p": {"temperature": 1.5, "min_p": 0.1},
    "all": {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("model")
    hf: Any = make_hf_model("qwen3", std=0.1, head_dim=64)
    hf.save_pretrained(folder)
    return folder, hf


def by_definition(logits: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    """[rows, vocab] float64."""
    return torch.from_numpy(np.stack([distribution(row.tolist(), **settings) for row in logits]))


@torch.inference_mode()
def two_tokens(hf: Any, settings: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """[vocab] each: how likely each token is to come first, and second, whichever was first."""
    first = by_definition(hf(torch.tensor([PROMPT])).logits[:, -1], settings)[0]
    texts = torch.cat([torch.tensor(PROMPT).expand(VOCAB, -1), torch.arange(VOCAB)[:, None]], dim=1)
    second = by_definition(hf(texts).logits[:, -1], settings)
    return first, first @ second


def assert_shares(counts: torch.Tensor, expected: torch.Tensor) -> None:
    """Each token's share within 6 standard deviations; what cannot come never came."""
    draws = counts.sum()
    assert counts[expected == 0].sum() == 0
    deviation = (draws * expected * (1 - expected)).sqrt()
    assert ((counts - draws * expected).abs() <= 6 * deviation + 2).all()


@on_every_place
@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_tokens_of_many_answers(model: tuple[Path, Any], kind: str, seeded: bool, place: Place) -> None:
    """The first is drawn behind a prefill, the second in a decode step, out of a graph where there are any."""
    folder, hf = model
    draws = 20_000 if place.full else 600
    llm = LLM(
        str(folder), skip_tokenizer_init=True, dtype="float32", device=place.device, max_model_len=32, num_kv_blocks=600
    )
    params = [SamplingParams(**KINDS[kind], max_tokens=2, seed=n if seeded else None) for n in range(draws)]
    outputs = llm.generate([PROMPT] * draws, params, use_tqdm=False)
    said = torch.tensor([output.outputs[0].token_ids for output in outputs])
    for place_in_answer, expected in enumerate(two_tokens(hf, KINDS[kind])):
        assert (expected > 0).sum() > 1
        assert_shares(said[:, place_in_answer].bincount(minlength=VOCAB), expected)
