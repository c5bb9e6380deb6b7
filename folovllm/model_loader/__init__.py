"""Decides a model's device, dtype and length, and loads Hugging Face's own implementation of it.

What the loaded model is for: it is the oracle. Every other way to compute the same tokens is compared with it.

vLLM: model_executor/model_loader/
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.errors import ModelLoadError
from folovllm.model_loader.gguf_tokenizer import gguf_tokenizer
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import hub_hint, is_gguf, readable_errors, resolve_model_path
from folovllm.utils.checks import wrong
from folovllm.utils.devices import cpu_has_bf16_units, default_device, hidden_gpu_reason
from folovllm.utils.logging import init_logger

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MAX_MODEL_LEN = 2048


def get_model_and_tokenizer(
    model_config: ModelConfig, device: torch.device | str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """The Hugging Face model and its tokenizer (None under skip_tokenizer_init)."""
    tokenizer = None if model_config.skip_tokenizer_init else load_tokenizer(model_config)
    return ModelLoader(model_config).load(device), tokenizer


class ModelLoader:
    """Loads what a ModelConfig names, as Hugging Face's model in evaluation mode."""

    def __init__(self, model_config: ModelConfig, attn_implementation: str | None = None) -> None:
        """attn_implementation: a name that transformers' AttentionInterface knows; None: transformers chooses."""
        self.model_config = model_config
        self._attention = {} if attn_implementation is None else {"attn_implementation": attn_implementation}

    def load(self, device: torch.device | str | None = None) -> PreTrainedModel:
        """The model on `device` (None: the one that model_config leads to), in the resolved dtype."""
        import torch

        where = resolve_device(self.model_config) if device is None else torch.device(device)
        hf_config = load_hf_config(self.model_config)
        dtype = resolve_dtype(self.model_config, hf_config, where)
        init_logger(__name__).info("loading %s as %s on %s", self.model_config.model, dtype, where)
        if self.model_config.load_format == "dummy":
            return self._fill(hf_config, dtype, where)
        return self._read(hf_config, dtype, where)

    def _read(self, hf_config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Read the weights into a model that takes no memory before they come.

        A `device_map` selects accelerate's low-memory path: the modules are built on the meta device, which
        has shapes and no storage, and each tensor goes from the file straight to its device in its final
        dtype. Built the plain way, a model would be filled with random numbers first, only to be overwritten,
        and would be in CPU memory on its way to a GPU.
        """
        from transformers import AutoModelForCausalLM

        path = resolve_model_path(self.model_config.model)
        if is_gguf(path):
            raise ModelLoadError(
                f"model {path!r} is computed by our own layers, not by transformers': give model_impl='folovllm'"
            )
        with readable_errors(self.model_config.model):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path,
                config=hf_config,
                dtype=dtype,
                device_map={"": device},
                trust_remote_code=self.model_config.trust_remote_code,
                ignore_mismatched_sizes=True,  # they come back in the report, and are refused below by name
                output_loading_info=True,
                **self._attention,
            )
        model, report = loaded
        # transformers fills what a checkpoint lacks with random numbers and goes on: text would come out,
        # and it would be nonsense.
        self._refuse("lacks", report["missing_keys"])
        self._refuse("has another shape for", (key[0] for key in report["mismatched_keys"]))
        return model.eval()  # type: ignore[no-any-return]

    def _refuse(self, problem: str, tensors: Iterable[str]) -> None:
        if keys := sorted(tensors):
            names = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            raise ModelLoadError(
                f"model {self.model_config.model!r}: its checkpoint {problem} {names}; "
                "is config.json the one that belongs to these weights?"
            )

    def _fill(self, hf_config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Random weights of the configuration's shape, the same ones for the same seed."""
        import torch
        from transformers import AutoModelForCausalLM

        with torch.random.fork_rng(), device:  # built where it will live, the global generator untouched
            torch.manual_seed(self.model_config.seed)
            model = AutoModelForCausalLM.from_config(
                hf_config, dtype=dtype, trust_remote_code=self.model_config.trust_remote_code, **self._attention
            )
        return model.eval()  # type: ignore[no-any-return]


def resolve_device(model_config: ModelConfig) -> torch.device:
    """The device that was asked for, if it is there; the current GPU, else the CPU, when none was. A GPU has its
    number: "cuda" alone would be another one in another thread."""
    import torch

    device = torch.device(model_config.device or default_device())
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        hidden = f": {reason}" if count == 0 and (reason := hidden_gpu_reason()) else ""
        raise ValueError(
            f"device must exist, got {model_config.device!r} where torch finds {count} CUDA devices{hidden}; "
            "use device='cpu', or None to let it be picked"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(
            f"device must exist, got 'mps' where torch {torch.__version__} finds no GPU of a Mac; use device='cpu', or "
            f"None to let it be picked"
        )
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def resolve_dtype(model_config: ModelConfig, hf_config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations: what was asked for, else by the rule for "auto".

    On CUDA: the checkpoint's own. It was trained in it, half the bytes of float32 are half the time of a decode step,
    and the hardware multiplies it natively: bfloat16 from compute capability 8.0 on, before that float16.

    On a CPU: bfloat16 if that is the checkpoint's own and the CPU has units that multiply it (AMX or AVX-512 BF16),
    else float32. Without the units, torch's bfloat16 product takes several times as long as float32's from a handful
    of rows on. float16 is never picked: its units are rarer, and some activations reach its largest number, 65504.
    """
    import torch

    asked = model_config.torch_dtype
    if asked is not None:
        return asked
    own = getattr(hf_config, "dtype", None)
    if not isinstance(own, torch.dtype):  # old or hand-written files may not say
        own = torch.float32
    if device.type == "cuda":
        if own == torch.bfloat16 and torch.cuda.get_device_capability(device) < (8, 0):
            init_logger(__name__).warning("dtype='auto' is float16: %s multiplies no bfloat16", device)
            return torch.float16
        return own
    return own if own == torch.bfloat16 and cpu_has_bf16_units() else torch.float32


def resolve_max_model_len(hf_config: PreTrainedConfig, requested: int | None) -> int:
    """The longest prompt and output together: what was asked for, else what the model can do, else 2048.

    A model has learnt positions up to `max_position_embeddings`; beyond, RoPE turns to angles it never saw.
    RoPE scaling stretches that, and config.json counts it in one of two ways. linear and dynamic keep the
    unstretched length there, so it is multiplied by the factor; yarn names the unstretched length itself
    (`original_max_position_embeddings`), which is multiplied instead. llama3 and longrope write the
    stretched length into `max_position_embeddings`, so nothing is left to do.
    """
    limit = _model_limit(hf_config)
    if requested is None:
        return limit or DEFAULT_MAX_MODEL_LEN
    if limit is not None and requested > limit:
        raise wrong("max_model_len", f"be at most {limit}, the length the model was made for", requested)
    return requested


def _model_limit(hf_config: PreTrainedConfig) -> int | None:
    length = getattr(hf_config, "max_position_embeddings", None)
    if length is None:
        return None
    # transformers 5 keeps all of RoPE in rope_parameters; remote code may still have the old name.
    rope = getattr(hf_config, "rope_parameters", None) or getattr(hf_config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "yarn":
        length = rope.get("original_max_position_embeddings", length)
    if kind in ("yarn", "linear", "dynamic"):
        return int(length * rope.get("factor", 1.0))
    return int(length)


def load_tokenizer(model_config: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer, padding on the left.

    A batch of prompts of unequal length needs padding to become a rectangle. A decoder goes on from the
    last column, so that column must hold each prompt's last token: padded on the right, the shorter ones
    would be continued from a padding token. (Flat tokens need no padding at all; the oracle does.)
    """
    from transformers import AutoTokenizer

    if model_config.tokenizer_mode == "slow":
        raise ModelLoadError(
            "tokenizer_mode 'slow' is not available: transformers 5 loads fast tokenizers only; use 'auto'"
        )
    name = model_config.tokenizer or model_config.model
    # A folder given for its tokenizer alone need not hold a model.
    whole_model = name in (model_config.model, EMBEDDED_MODEL)
    path = os.path.expanduser(name)
    if whole_model:
        path = resolve_model_path(name, weights=model_config.load_format != "dummy", tokenizer=True)
    with readable_errors(name, "tokenizer", hint=hub_hint(path)):
        if is_gguf(path):
            tokenizer = gguf_tokenizer(path)
        else:
            tokenizer = AutoTokenizer.from_pretrained(
                path, trust_remote_code=model_config.trust_remote_code, padding_side="left"
            )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # masked anyway, so any id will do
    return tokenizer  # type: ignore[no-any-return]
