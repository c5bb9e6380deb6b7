"""One model, and the voices that it is heard with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from folovllm import LoRARequest
from tests.helpers import hf_greedy, make_hf_model
from tests.m4.conftest import fake_cuda, patch_once_a_launch
from tests.m6.conftest import fixed_order
from tests.m9.ranks_support import rank_threads
from tests.m12.adapters import VOICES, make_adapter, with_adapter

__all__ = ["fake_cuda", "fixed_order", "patch_once_a_launch", "rank_threads"]


@dataclass
class Choir:
    """A model, and Hugging Face's with each adapter merged into its weights; None: with none."""

    folder: Path
    models: dict[str | None, torch.nn.Module]
    requests: dict[str | None, LoRARequest | None]
    _said: dict[tuple[str | None, tuple[int, ...]], list[int]] = field(default_factory=dict)

    def greedy(self, voice: str | None, prompt: list[int], num_tokens: int) -> list[int]:
        key = voice, tuple(prompt)
        if len(self._said.get(key, ())) < num_tokens:
            self._said[key] = hf_greedy(self.models[voice], prompt, num_tokens)
        return self._said[key][:num_tokens]


def make_choir(
    folder: Path, hf: torch.nn.Module, *, merged: bool = True, targets: tuple[str, ...] | None = None
) -> Choir:
    """targets: which matrices each adapter changes; None: as VOICES says."""
    choir = Choir(folder / "model", {None: hf}, {None: None})
    for number, (voice, (own, config)) in enumerate(VOICES.items(), 1):
        path = make_adapter(folder / voice, hf, targets or own, seed=number, **config)
        choir.models[voice] = with_adapter(hf, path, merged=merged)
        choir.requests[voice] = LoRARequest(voice, number, str(path))
    return choir


@pytest.fixture(scope="session")
def choir(tmp_path_factory: pytest.TempPathFactory) -> Choir:
    folder = tmp_path_factory.mktemp("choir")
    hf = make_hf_model("qwen3", num_hidden_layers=3)
    hf.save_pretrained(folder / "model")  # type: ignore[operator]
    return make_choir(folder, hf)
