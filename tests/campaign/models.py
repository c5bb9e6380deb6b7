"""The campaign's models: random ones, each made once, with Hugging Face's own on the same weights."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from folovllm import LoRARequest
from folovllm.distributed.parallel_state import part
from tests.campaign.case import ModelSpec
from tests.helpers import make_hf_model
from tests.m1.byte_tokenizer import BOS, EOS, byte_tokenizer
from tests.m7.rounded_cache import RoundedCache, rounded
from tests.m8.eagle_support import add_head
from tests.m11.pooling_support import add_modules
from tests.m12.adapters import ATTENTION, VOICES, make_adapter, with_adapter

TEXT_VOCAB = 258
MODES = {"LAST": "lasttoken", "MEAN": "mean"}
HALFWAY = 1e-5
"""How near to the middle between two codes a number may fall to the other side in float32, in steps of its scale."""
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
    ModelSpec("qwen3", 97, 2, 8, 2, 32, tied=True, eos=(3,)),  # of which two ranks have whole groups of codes
    ModelSpec("qwen2_moe", 61, 1, 8, 1, 32, eos=(5,)),
    ModelSpec("qwen3_moe", 97, 2, 4, 2, 8, eos=(3,)),
    ModelSpec("mixtral", 61, 2, 6, 3, 8, tied=True, eos=(5,)),
    ModelSpec("qwen2_moe", 61, 2, 4, 2, 8, eos=(3,)),
    ModelSpec("mistral", 61, 2, 4, 2, 16, eos=(3,), window=7),
    ModelSpec("qwen2", 97, 2, 4, 1, 16, tied=True, window=10, tables=2),  # of the second layer
    ModelSpec("mixtral", 32, 2, 4, 2, 8, eos=(5,), window=3),
    ModelSpec("qwen3", TEXT_VOCAB, 2, 4, 2, 16, eos=(EOS,), text=True, transformers=True),
    ModelSpec("gpt2", 97, 2, 4, 4, 8, tied=True, eos=(7,), transformers=True),
    ModelSpec("qwen2_moe", 61, 3, 4, 2, 8, eos=(3,), window=5, tables=3),
    ModelSpec("qwen3_moe", 61, 2, 4, 2, 8, eos=(3,), transformers=True),
    ModelSpec("gemma2", 61, 3, 4, 2, 16, tied=True, eos=(3,), transformers=True, window=6, tables=3),
    ModelSpec("gemma3_text", 61, 6, 4, 1, 8, tied=True, eos=(3,), transformers=True, window=7, tables=6),
    ModelSpec("gpt_oss", 61, 2, 4, 2, 8, eos=(5,), transformers=True, window=9, tables=2),
]


def is_moe(spec: ModelSpec) -> bool:
    return "moe" in spec.kind or spec.kind == "mixtral"


def has_head(spec: ModelSpec) -> bool:
    """Whether its folder has a head that reads the model, method "mtp"."""
    dense = spec.kind in ("llama", "qwen2", "qwen3") and spec.pooling is None
    return dense and spec.window is None and not spec.transformers


class Model:
    """One of them. `hf` answers in float32, as a user's would; `after` in float64, for the reference. ranks: of the
    engines that it is held against."""

    def __init__(self, spec: ModelSpec, folder: Path, ranks: int) -> None:
        self.spec, self.folder = spec, folder
        window = {"sliding_window": spec.window, "use_sliding_window": True, "max_window_layers": 1}
        hf: Any = make_hf_model(
            spec.kind,
            vocab_size=spec.vocab_size,
            num_hidden_layers=spec.num_layers,
            num_attention_heads=spec.num_heads,
            num_key_value_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            hidden_size=spec.hidden_size,
            max_position_embeddings=128,
            tie_word_embeddings=spec.tied,
            eos_token_id=list(spec.eos) or None,
            bos_token_id=BOS if spec.text else None,
            **(window if spec.window else {}),
        )
        hf.set_attn_implementation("eager")  # torch's has neither a soft-cap nor sinks
        hf.save_pretrained(folder)
        if has_head(spec):
            add_head(folder, hf)
        if spec.pooling:
            add_modules(folder, {"pooling_mode": MODES[spec.pooling]}, "Normalize")
        self._shares = _round_weights(hf, spec.quantization, ranks) if spec.quantization else {}
        self.tokenizer: Any = None
        if spec.text:
            self.tokenizer = byte_tokenizer()
            self.tokenizer.save_pretrained(folder)
        hf.set_experts_implementation("eager")  # the others have no float64, and no product that is rounded
        self._voices: dict[str, Model] = {}
        self._take(hf)

    def _take(self, hf: Any) -> None:
        self.hf = hf
        self._exact = copy.deepcopy(hf).double()
        self._rows: dict[tuple[int, ...], np.ndarray] = {}
        self._margins: list[torch.Tensor] = []  # of the newest forward's routers, [num_tokens] each
        self._margin_after: dict[tuple[int, ...], float] = {}
        self._distance_after: dict[tuple[int, ...], float] = {}
        for name, module in self._exact.named_modules():
            if name.endswith((".gate", ".router")):
                module.register_forward_hook(self._note_margin)

    def adapter(self, voice: str) -> LoRARequest:
        """The folder is made when it is first asked for. A decoder with experts has it in its attention alone."""
        folder, number = self.folder.with_name(f"{self.folder.name}-{voice}"), list(VOICES).index(voice) + 1
        if not folder.exists():
            targets, config = VOICES[voice]
            make_adapter(folder, self.hf, ATTENTION if is_moe(self.spec) else targets, seed=number, **config)
        return LoRARequest(voice, number, str(folder))

    def with_voice(self, voice: str | None) -> Model:
        """The same, with an adapter's weights merged into its own."""
        if voice is None:
            return self
        if voice not in self._voices:
            self._voices[voice] = other = copy.copy(self)
            other._take(with_adapter(self.hf, Path(self.adapter(voice).lora_path)))
        return self._voices[voice]

    @torch.inference_mode()
    def vector(self, prompt: list[int]) -> np.ndarray:
        """[hidden] float64: the last row behind a prompt's tokens, or the mean of all rows."""
        rows = self._exact.base_model(torch.tensor([prompt]), **self._cache()).last_hidden_state[0]
        return (rows[-1] if self.spec.pooling == "LAST" else rows.mean(dim=0)).numpy()

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
            self._margins.clear()
            rounding = _Rounding(self._exact, self._shares) if self._rounds_inputs else None
            with rounding or nullcontext():
                rows = self._exact(torch.tensor([token_ids]), **self._cache()).logits[0].numpy()
            distances = [each.expand(len(token_ids)) for each in rounding.distances] if rounding else []
            margin, distance = _least_so_far(self._margins), _least_so_far(distances)
            for length in range(1, len(token_ids) + 1):
                beginning = tuple(token_ids[:length])
                self._rows.setdefault(beginning, rows[length - 1])
                if margin:
                    self._margin_after.setdefault(beginning, margin[length - 1])
                if distance:
                    self._distance_after.setdefault(beginning, distance[length - 1])

    def _note_margin(self, _module: Any, _inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
        best = outputs[0].topk(outputs[-1].shape[-1] + 1).values
        self._margins.append(best[:, -2] - best[:, -1])

    def is_torn(self, token_ids: list[int], tie: float) -> bool:
        """Whether on the way to what follows these tokens a router chose an expert by less than `tie`, or an input lay
        halfway between two of its 8 bits' codes: float32 may have chosen the other one, and computed another model."""
        self.after(token_ids)
        key = tuple(token_ids)
        return self._margin_after.get(key, math.inf) < tie or self._distance_after.get(key, math.inf) < HALFWAY

    @property
    def _rounds_inputs(self) -> bool:
        return (self.spec.quantization or "").endswith("a8")

    @property
    def slack(self) -> float:
        """How many times as far from the reference as float32 is. A number of a key, or of a product's input, that is
        nearly between two codes may have the one in float32 and the other in float64."""
        if self._rounds_inputs:
            return 2000.0
        return 200.0 if self.spec.int8_cache else 1.0

    def _cache(self) -> dict[str, Any]:
        return {"past_key_values": RoundedCache()} if self.spec.int8_cache else {"use_cache": False}

    def forget(self) -> None:
        for model in (self, *self._voices.values()):
            model._rows.clear()
            model._margin_after.clear()
            model._distance_after.clear()

    @torch.inference_mode()
    def generate(self, prompt: list[int], **settings: Any) -> Any:
        """Hugging Face's generate, undisturbed by what the model's folder says of sampling."""
        ids = torch.tensor([prompt])
        pad = self.spec.vocab_size - 1
        flags = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True, "pad_token_id": pad}
        settings |= self._cache() if self.spec.int8_cache else {}
        with _Rounding(self.hf, self._shares) if self._rounds_inputs else nullcontext():
            return self.hf.generate(ids, attention_mask=torch.ones_like(ids), **flags, **settings)


def group_size(quantization: str, columns: int) -> int:
    """How many columns of a weight share a scale: 128, or the next smaller power of two that divides them; with
    "w8a8", all of them."""
    return next((g for g in (128, 64, 32, 16, 8) if quantization != "w8a8" and columns % g == 0), columns)


def columns_together(quantization: str | None, columns: int) -> int:
    """Of a weight that is cut by inputs each rank has a multiple of so many columns."""
    if quantization in (None, "w8a8"):
        return 8 if quantization else 1
    return group_size(quantization, columns)


def _round_weights(hf: Any, quantization: str, ranks: int) -> dict[str, list[int]]:
    """As the engine has to read them back: whole numbers up to 7, or with "w8a8" 127, in size times the scale of their
    group. Returns the names of the weights, products' and experts' of the layers, with the number of columns of each
    rank, which rounds whole rows by itself; [all of them]: it is not cut by inputs."""
    shares, largest = {}, 127 if quantization == "w8a8" else 7
    for name, weight in hf.named_parameters():
        if weight.dim() == 3 or name.endswith("_proj.weight"):
            columns, is_cut = weight.shape[-1], "o_proj" in name or "down_proj" in name
            size, unit = group_size(quantization, columns), columns_together(quantization, columns)
            shares[name] = [len(part(columns, rank, ranks, unit)) for rank in range(ranks)] if is_cut else [columns]
            parts = []
            for share in weight.data.split(shares[name], -1):
                groups = share.unflatten(-1, (-1, min(size, share.shape[-1])))
                scale = groups.abs().amax(-1, keepdim=True) / largest
                parts.append(((groups / scale).round() * scale).flatten(-2))
            weight.data = torch.cat(parts, -1)
    return shares


class _Rounding(TorchFunctionMode):
    """What goes into the products with these weights is rounded to 8 bits, each rank's share of a row with its own
    scale."""

    def __init__(self, model: Any, shares: dict[str, list[int]]) -> None:
        super().__init__()
        self.shares = {model.get_parameter(name).untyped_storage().data_ptr(): shares[name] for name in shares}
        self.distances: list[torch.Tensor] = []
        """Of each product, see _to_the_middle."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and (shares := self.shares.get(args[1].untyped_storage().data_ptr())):
            parts = args[0].split(shares, -1)
            self.distances += [_to_the_middle(each) for each in parts if each.numel()]
            args = (torch.cat([rounded(each) for each in parts], -1), *args[1:])
        return func(*args, **(kwargs or {}))


def _to_the_middle(x: torch.Tensor) -> torch.Tensor:
    """The smallest distance of a number to the middle between two codes, in steps of its scale: at each position of x
    [1, num_tokens, in]; for all positions together, where the rows of x [rows, in] are an expert's."""
    codes = x / (x.abs().amax(-1, keepdim=True) / 127)
    distances = (codes - codes.floor() - 0.5).abs().nan_to_num(1.0).amin(-1)
    return distances[0] if x.dim() == 3 else distances.amin()


def _least_so_far(noted: list[torch.Tensor]) -> list[float]:
    """By position, of what was noted there or before; []: nothing was."""
    return torch.stack(noted).amin(0).cummin(0).values.tolist() if noted else []


class Models:
    """Makes each model when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple[ModelSpec, int], Model] = {}

    def get(self, spec: ModelSpec, ranks: int) -> Model:
        if (spec, ranks) not in self._made:
            folder = self.folder / str(len(self._made))
            self._made[spec, ranks] = Model(spec, folder, ranks)
        return self._made[spec, ranks]
