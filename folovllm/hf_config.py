"""What a model's makers wrote down: config.json and generation_config.json, checked before they are believed.

transformers reads them and checks the types of most fields. What is checked here is what the engine itself goes
by, and what transformers would take up that we do not have.

vLLM: transformers_utils/config.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.config import ModelConfig
from folovllm.model_files import hub_hint, read_json, readable_errors, resolve_model_path
from folovllm.quant_scheme import read_scheme
from folovllm.utils.checks import check_float, check_int, check_str, wrong
from folovllm.utils.logging import init_logger

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# No model comes near. A number far beyond would be counted out layer by layer before anything could be compared.
MAX_LAYERS = 1000
# A larger number is no size: products of a few of them overflow wherever elements are counted.
MAX_SIZE = 2**40

# For other names, such as GPT-2's, transformers answers to these as well.
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings",
)  # fmt: skip
_SIZES_OR_NONE = ("head_dim", "sliding_window")  # 0 where some model has no such thing
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
# Numbers of rope_parameters, and what each must be greater than: with a base of 1 all points turn alike.
_ROPE_ABOVE = {
    "rope_theta": 1, "factor": 0, "low_freq_factor": 0, "high_freq_factor": 0, "attention_factor": 0,
    "partial_rotary_factor": 0,
}  # fmt: skip
# 0 stands for the default.
_ROPE_NOT_NEGATIVE = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_ROPE_NEEDED = {
    "linear": ["factor"],
    "dynamic": ["factor"],
    "yarn": ["factor"],
    "llama3": ["factor", "low_freq_factor", "high_freq_factor"],
}


def load_hf_config(model_config: ModelConfig) -> PreTrainedConfig:
    """The model's config.json, as transformers reads it.

    Raises:
        ModelLoadError: it is damaged, a field is wrong, or the weights are quantised in a way that is not supported:
            by name.
    """
    from transformers import AutoConfig

    path = resolve_model_path(model_config.model, weights=model_config.load_format != "dummy")
    with readable_errors(model_config.model, hint=hub_hint(path)):
        written = read_settings(path, "config.json")
        if written is not None:
            _check_as_written(written)
        hf_config = AutoConfig.from_pretrained(path, trust_remote_code=model_config.trust_remote_code)
        check_numbers(hf_config.get_text_config())
    return hf_config  # type: ignore[no-any-return]


def read_settings(path: str, name: str) -> dict[str, Any] | None:
    """A JSON file of the model's folder or hub repository; None if it has no such file."""
    if Path(path).is_dir():
        file = Path(path) / name
        return read_json(file) if file.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return read_json(Path(hf_hub_download(path, name)))
    except (EntryNotFoundError, LocalEntryNotFoundError):  # the latter: it was not downloaded, and no hub can be asked
        return None


def _check_as_written(written: dict[str, Any]) -> None:
    """The fields whose mistakes transformers would report in words of its own, or not at all."""
    for part in (written, written.get("text_config")):
        if not isinstance(part, dict):
            continue
        for name in ("rope_parameters", "rope_scaling"):
            _check_ropes(part.get(name))
        if part.get("compression_config") is not None:
            raise ValueError("compression_config in config.json is an old name of quantization_config: rename it")
        if part.get("quantization_config") is not None:
            read_scheme(part["quantization_config"])
    if written.get("model_type") is not None:
        check_str("model_type", written["model_type"])
    architectures = written.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)
    ):
        raise wrong("architectures", "be a list of class names", architectures)
    for name in ("dtype", "torch_dtype"):
        _check_dtype(name, written.get(name))
    layers = written.get("num_hidden_layers")
    if isinstance(layers, int) and layers > MAX_LAYERS:
        raise wrong("num_hidden_layers", f"be at most {MAX_LAYERS}", layers)


def _check_dtype(name: str, value: object) -> None:
    """A name that torch has, of numbers that can be computed with. A model of several parts may have a dict of them."""
    import torch

    if value is None or isinstance(value, dict):
        return
    dtype = getattr(torch, value, None) if isinstance(value, str) else None
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise wrong(name, "be float32, bfloat16 or float16", value)


def check_numbers(config: Any) -> None:
    """Refuse, by its field's name, a number that nothing can be computed with, wherever one is given.

    Raises:
        ValueError: such a number, in a configuration as transformers read it: all of RoPE is in rope_parameters.
    """
    # A model may have a size for each layer: in a list, or in configurations of their own.
    for name in () if getattr(config, "is_heterogeneous", False) else (*_SIZES, *_SIZES_OR_NONE):
        if isinstance(size := getattr(config, name, None), int):
            _check_size(name, size, 0 if name in _SIZES_OR_NONE else 1)
    for name in _EPSILONS:
        if (epsilon := getattr(config, name, None)) is not None and check_float(name, epsilon) < 0:
            raise wrong(name, "not be negative", epsilon)
    rope = getattr(config, "rope_parameters", None) or {}
    if not isinstance(rope, dict):
        raise wrong("rope_parameters", "be an object", rope)
    _check_ropes(rope, getattr(config, "max_position_embeddings", None))


def _check_size(name: str, value: Any, least: int = 1) -> None:
    check_int(name, value, least)
    if value > MAX_SIZE:
        raise wrong(name, f"be at most {MAX_SIZE}", value)


def _check_ropes(rope: Any, length: int | None = None) -> None:
    """One rope_parameters, or one for each kind of layer."""
    if isinstance(rope, dict):
        for part in (rope, *rope.values()):
            if isinstance(part, dict):
                _check_rope(part, length)


def _check_rope(rope: dict[str, Any], length: int | None) -> None:
    for name in _ROPE_NEEDED.get(str(rope.get("rope_type")), []):
        check_float(f"rope_parameters['{name}']", rope.get(name))
    for name in (*_ROPE_ABOVE, *_ROPE_NOT_NEGATIVE):
        if (value := rope.get(name)) is None:
            continue
        called = name if name == "rope_theta" else f"rope_parameters['{name}']"  # many files have it outside
        check_float(called, value)
        if name in _ROPE_NOT_NEGATIVE and value < 0:
            raise wrong(called, "not be negative", value)
        if name in _ROPE_ABOVE and value <= (least := _ROPE_ABOVE[name]):
            raise wrong(called, f"be greater than {least}" if least else "be positive", value)
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if low is not None and high is not None and high <= low:
        raise wrong("rope_parameters['high_freq_factor']", f"be greater than low_freq_factor ({low})", high)
    original = rope.get("original_max_position_embeddings")
    if original is not None:
        _check_size("original_max_position_embeddings", original)
    if (shortest := min(original or MAX_SIZE, length or MAX_SIZE)) * (rope.get("factor") or 1) < 1:
        raise wrong("rope_parameters['factor']", f"leave something of a length of {shortest}", rope["factor"])


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's makers say about generating: here, the ids that end a text."""

    eos_token_ids: frozenset[int]


def load_generation_config(model_config: ModelConfig) -> GenerationDefaults:
    """From generation_config.json; where there is none, or it names no EOS, from config.json.

    A chat model has several ends: one for the turn, one for the text. Missing one of them, it would talk on
    in both roles.

    Raises:
        ModelLoadError: a file is damaged, or names an end that is no token id.
    """
    name = model_config.model
    hf_config = load_hf_config(model_config)
    with readable_errors(name):
        written = read_settings(resolve_model_path(name, weights=False), "generation_config.json") or {}
        eos = written.get("eos_token_id")
        if eos is None:
            eos = getattr(hf_config, "eos_token_id", None)
        ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
        try:
            for token_id in ids:
                check_int("eos_token_id", token_id)
        except ValueError:
            raise wrong("eos_token_id", "be a token id or a list of them", eos) from None
    vocab_size = getattr(hf_config.get_text_config(), "vocab_size", None)
    drawn = frozenset(i for i in ids if i >= 0 and (vocab_size is None or i < vocab_size))
    if len(drawn) < len(set(ids)):
        init_logger(__name__).warning("%s: of eos_token_id %s, ids that can never be drawn are left out", name, eos)
    return GenerationDefaults(eos_token_ids=drawn)
