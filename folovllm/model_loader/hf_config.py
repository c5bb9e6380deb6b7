"""What a model's makers wrote down: config.json and generation_config.json, as transformers reads them, and checked.

vLLM: transformers_utils/config.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.config import ModelConfig
from folovllm.errors import ModelLoadError
from folovllm.model_loader.gguf import gguf_settings
from folovllm.model_loader.hf_config_checks import check_as_written, check_numbers
from folovllm.model_loader.model_files import hub_hint, is_gguf, read_json, readable_errors, resolve_model_path
from folovllm.model_loader.quant_scheme import ONLINE, read_scheme
from folovllm.pooling_params import PoolingTask
from folovllm.utils.checks import check_int, describe, did_you_mean, wrong
from folovllm.utils.logging import init_logger

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KNOWN_AS = {"mimo": "qwen2"}
OF_POOLING = ("classifier_from_token", "is_original_qwen3_reranker", "is_matryoshka", "matryoshka_dimensions")
"""vLLM's fields, which hf_overrides may bring though few files have them."""


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
            check_as_written(written)
        if is_gguf(path) and written is not None:
            codes = written.get("quantization_config", {}).get("layers", {})
            if "lm_head" in codes and model_config.quantization not in ONLINE:
                written["tie_word_embeddings"] = False  # the head has codes, and the embedding rows to look up
            hf_config = AutoConfig.for_model(**written)
        else:
            hf_config = read_config(path, trust_remote_code=model_config.trust_remote_code)
        if overrides := model_config.hf_overrides:
            for name in overrides.keys() - (written or {}).keys() - {*OF_POOLING}:
                if not hasattr(hf_config, name):
                    hint = did_you_mean(name, hf_config.to_dict())
                    raise wrong("hf_overrides", "have fields of this model's config.json", name, hint)
            check_as_written(overrides)
            hf_config = type(hf_config).from_dict({**(written or {}), **overrides})
        check_numbers(hf_config.get_text_config())
        if getattr(hf_config, "quantization_config", None) is None and (settings := _old_settings(model_config, path)):
            read_scheme(settings)
            hf_config.quantization_config = settings
        _note_pooling(hf_config, model_config.runner, path)
    return hf_config  # type: ignore[no-any-return]


def read_config(path: str, *, trust_remote_code: bool) -> PreTrainedConfig:
    """config.json by transformers' class for it. Of a model_type that transformers lacks, by that of KNOWN_AS."""
    from transformers import AutoConfig, PreTrainedConfig

    written, _ = PreTrainedConfig.get_config_dict(path)
    if (known_as := KNOWN_AS.get(written.get("model_type", ""))) is None:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)  # type: ignore[no-any-return]
    return AutoConfig.for_model(**{**written, "model_type": known_as})  # type: ignore[no-any-return]


def _note_pooling(hf_config: PreTrainedConfig, runner: str, path: str) -> None:
    """Sets pooling_task, None where tokens are drawn; pooler_config.py has the rules. A model that pools is built as
    one that draws, with no head of its own.

    Raises:
        ModelLoadError: its tokens see those that come later.
    """
    names = hf_config.architectures or []
    found: PoolingTask | None = None
    if runner == "generate":
        pass
    elif any(name.endswith("ForSequenceClassification") for name in names) or asked_tokens(hf_config):
        found = "classify"
    elif (modules := read_modules(path)) is not None:
        found = "classify" if "LogitScore" in modules else "embed"
    elif runner == "pooling" or any(re.fullmatch("((?!For|LMHead|Chat).)+Model", name) for name in names):
        found = "embed"
    hf_config.pooling_task = found
    if found is None:
        return
    for name, causal in (("is_causal", True), ("is_decoder", True), ("use_bidirectional_attention", False)):
        value = getattr(hf_config.get_text_config(), name, None)
        if value is not None and bool(value) is not causal:
            raise ModelLoadError(
                f"{name} of model_type {hf_config.model_type!r} must be {causal} to pool, got {value!r}: its tokens "
                "look both ways, which is not computed here"
            )
    hf_config.architectures = [re.sub("(Model|ForSequenceClassification)$", "ForCausalLM", name) for name in names]
    hf_config.tie_word_embeddings = True


def read_modules(path: str) -> dict[str, str] | None:
    """modules.json: the folder of each module, by its class's name; None: sentence-transformers did not write this."""
    if (found := read_settings(path, "modules.json", list)) is None:
        return None
    try:
        return {each["type"].rpartition(".")[2]: each["path"] for each in found}
    except (AttributeError, KeyError, TypeError):
        raise ModelLoadError(f"modules.json must list modules by type and path, got {describe(found)}") from None


def asked_tokens(hf_config: PreTrainedConfig) -> list[str]:
    """["no", "yes"], where a language model is asked for them."""
    return getattr(hf_config, "classifier_from_token", None) or []


def _old_settings(model_config: ModelConfig, path: str) -> dict[str, Any] | None:
    """quantization_config, from the file of its own that AutoGPTQ and AutoAWQ wrote. The hub is asked for it only where
    the user says that there are codes."""
    for method, name in (("gptq", "quantize_config.json"), ("awq", "quant_config.json")):
        is_asked = Path(path).is_dir() or model_config.quantization == method
        if is_asked and (written := read_settings(path, name)) is not None:
            names = {"w_bit": "bits", "q_group_size": "group_size"}
            return {"quant_method": method} | {names.get(field, field): each for field, each in written.items()}
    return None


def read_settings(path: str, name: str, kind: type[Any] = dict) -> Any:
    """A JSON file, an object or a list, of the model's folder or hub repository, or what a GGUF file has of it; None:
    no such file."""
    if is_gguf(path):
        return gguf_settings(path, name)
    if Path(path).is_dir():
        file = Path(path) / name
        return read_json(file, kind) if file.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return read_json(Path(hf_hub_download(path, name)), kind)
    except (EntryNotFoundError, LocalEntryNotFoundError):  # the latter: it was not downloaded, and no hub can be asked
        return None


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
