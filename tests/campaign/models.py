"""The campaign's models: random ones, each made once, with Hugging Face's own on the same weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.campaign.case import ModelSpec
from tests.helpers import make_hf_model
from tests.m1.byte_tokenizer import BOS, EOS, byte_tokenizer
from tests.m7.rounded_cache import RoundedCache

TEXT_VOCAB = 258
SPECS = [
    ModelSpec(),
    ModelSpec("qwen2", 61, 2, 4, 1, 8, eos=(3, 17)),
    ModelSpec("qwen3", 32, 2, 4, 2, 8, tied=True, eos=(5,)),
    ModelSpec("llama", 97, 2, 8, 2, 8, tied=True),
    ModelSpec("qwen2", 256, 1, 2, 2, 16, tied=True, eos=(0, 1, 2)),
    ModelSpec("qwen3", 256, 2, 4, 2, 16),
    ModelSpec("llama", 33, 3, 3, 1, 16, eos=(2,)),
    ModelSpec("qwen3", 1000, 1, 6, 3, 8),
    ModelSpec("qwen3", TEXT_VOCAB, 2, 4, 2, 8, eos=(EOS,), text=True),
    ModelSpec("llama", TEXT_VOCAB, 1, 4, 4, 8, tied=True, eos=(EOS,), text=True),
    ModelSpec("qwen3", 256, 2, 4, 2, 16, quantized=True),
    ModelSpec("qwen2", 97, 1, 4, 1, 8, tied=True, eos=(3,), quantized=True),
    ModelSpec("qwen3", 97, 2, 4, 2, 16, int8_cache=True),
    ModelSpec("llama", 256, 1, 4, 1, 8, eos=(7,), int8_cache=True),
    ModelSpec("qwen3_moe", 97, 2, 4, 2, 8, eos=(3,)),
    ModelSpec("mixtral", 61, 2, 4, 1, 8, tied=True, eos=(5,)),
    ModelSpec("mistral", 61, 2, 4, 2, 16, eos=(3,), window=7),
    ModelSpec("qwen2", 97, 2, 4, 1, 16, tied=True, window=10),  # of the second layer
    ModelSpec("mixtral", 32, 2, 4, 2, 8, eos=(5,), window=3),
    ModelSpec("qwen3", TEXT_VOCAB, 2, 4, 2, 16, eos=(EOS,), text=True, transformers=True),
    ModelSpec("gpt2", 97, 2, 4, 4, 8, tied=True, eos=(7,), transformers=True),
    ModelSpec("gemma2", 61, 2, 4, 2, 16, tied=True, eos=(3,), transformers=True, window=6),
    ModelSpec("gpt_oss", 61, 2, 4, 2, 8, eos=(5,), transformers=True, window=9),
]


class Model:
    """One of them. `hf` answers in float32, as a user's would; `after` in float64, for the reference."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        window = {"sliding_window": spec.window, "use_sliding_window": True, "max_window_layers": 1}
        self.hf: Any = make_hf_model(
            spec.kind,
            vocab_size=spec.vocab_size,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=spec.num_heads,
            num_key_value_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            hidden_size=spec.num_heads * spec.head_dim,
            max_position_embeddings=128,
            tie_word_embeddings=spec.tied,
            eos_token_id=list(spec.eos) or None,
            bos_token_id=BOS if spec.text else None,
            **(window if spec.window else {}),
        )
        self.hf.set_attn_implementation("eager")  # torch's has neither a soft-cap nor sinks
        self.hf.save_pretrained(folder)
        if spec.quantized:
            for layer in self.hf.model.layers.modules():
                if isinstance(layer, torch.nn.Linear):
                    layer.weight.data = torch.from_numpy(rounded(layer.weight.data.numpy()))
        self.tokenizer: Any = None
        if spec.text:
            self.tokenizer = byte_tokenizer()
            self.tokenizer.save_pretrained(folder)
        self._exact = copy.deepcopy(self.hf).double()
        self._exact.set_experts_implementation("eager")  # the others have no float64
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    @torch.inference_mode()
    def after(self, token_ids: list[int]) -> np.ndarray:
        """The logits [vocab] that follow these tokens: one forward over all of them, float64."""
        if (row := self._rows.get(tuple(token_ids))) is None:
            self.read(token_ids)
            row = self._rows[tuple(token_ids)]
        return row

    @torch.inference_mode()
    def read(self, token_ids: list[int]) -> None:
        """Note the logits after every beginning of a text: in one forward each position sees only what is before it."""
        if tuple(token_ids) not in self._rows:
            rows = self._exact(torch.tensor([token_ids]), **self._cache()).logits[0].numpy()
            for length in range(1, len(token_ids) + 1):
                self._rows.setdefault(tuple(token_ids[:length]), rows[length - 1])

    @property
    def slack(self) -> float:
        """How many times as far from the reference as float32 is. A number of a key that is nearly between two codes
        may have the one in float32 and the other in float64."""
        return 200.0 if self.spec.int8_cache else 1.0

    def _cache(self) -> dict[str, Any]:
        return {"past_key_values": RoundedCache()} if self.spec.int8_cache else {"use_cache": False}

    def forget(self) -> None:
        self._rows.clear()

    @torch.inference_mode()
    def generate(self, prompt: list[int], **settings: Any) -> Any:
        """Hugging Face's generate, undisturbed by what the model's folder says of sampling."""
        ids = torch.tensor([prompt])
        pad = self.spec.vocab_size - 1
        flags = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True, "pad_token_id": pad}
        settings |= self._cache() if self.spec.int8_cache else {}
        return self.hf.generate(ids, attention_mask=torch.ones_like(ids), **flags, **settings)


def rounded(weight: np.ndarray) -> np.ndarray:
    """`weight` [out, in] as quantization="w4a16" has to read it back: in groups of 128 columns, or of the next smaller
    power of two that divides them, whole numbers from -7 to 7 times a seventh of the group's largest weight in size."""
    outs, size = weight.shape
    group = next(group for group in (128, 64, 32, 16, 8) if size % group == 0)
    groups = weight.reshape(outs, -1, group)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(7)
    return (np.rint(groups / scale) * scale).reshape(outs, size)


class Models:
    """Makes each model when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[ModelSpec, Model] = {}

    def get(self, spec: ModelSpec) -> Model:
        if spec not in self._made:
            folder = self.folder / str(len(self._made))
            self._made[spec] = Model(spec, folder)
        return self._made[spec]
