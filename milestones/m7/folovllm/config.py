"""The engine's configuration, in four layers: the model, the KV cache, the scheduler, and all three together.

Each layer is read by one part of the engine and checks its own fields when it is made, so a wrong value is
refused before anything is loaded. None means "decide when the model is known".

vLLM: vllm/config/
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from folovllm.utils.checks import (
    MAX_SEED,
    FollowingInt,
    FollowingStr,
    check_bool,
    check_choice,
    check_float,
    check_int,
    check_str,
    did_you_mean,
    wrong,
)

if TYPE_CHECKING:
    import torch

EMBEDDED_MODEL = "embedded"  # the small one that ships inside the package, and what `model=None` means

# The spellings a user may give, and torch's own name for each.
_DTYPES = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}


@dataclass
class ModelConfig:
    """Which model, and how to load it.

    `model` is the name of the embedded model, a local Hugging Face folder, or a hub id; `tokenizer` is the
    same unless given. `dtype` "auto" and `device` None are decided in model_loader/, which says why.
    `load_format` "dummy" fills random weights of the configuration's shape, to measure speed without a
    download. `seed` is for those and for unseeded draws. A request may ask for the log-probabilities of at
    most `max_logprobs` tokens per position (-1: of any number).
    `batch_invariant` makes a request's tokens and log-probabilities bit for bit the same in any batch.
    `quantization` rounds the weights of a checkpoint when it is loaded: "w4a16" to 4 bits, "w8a8" to 8 bits on both
    sides of each product, "w4a8" to 4 and 8, "fp8" to e4m3 numbers of 8 bits, on a GPU. `quantize_head` rounds the last
    matrix, too, which makes the logits, to 8 bits. What a checkpoint that is quantised already says of itself is read
    from its config.json; "gptq", "awq" and "compressed-tensors" ask for a checkpoint of that kind and no other.
    """

    model: str
    tokenizer: str | None = None
    tokenizer_mode: Literal["auto", "slow"] = "auto"
    trust_remote_code: bool = False
    dtype: str = "auto"
    max_model_len: int = None  # type: ignore[assignment]  # None until the model is known
    seed: int = 0
    device: str | None = None
    load_format: Literal["auto", "dummy"] = "auto"
    skip_tokenizer_init: bool = False
    attention_backend: str | None = None
    enforce_eager: bool = False
    max_logprobs: int = 20
    batch_invariant: bool = False
    quantization: Literal["w4a16", "w4a8", "w8a8", "fp8", "gptq", "awq", "compressed-tensors"] | None = None
    quantize_head: bool = False

    def __post_init__(self) -> None:
        self.model = _path_or_name("model", self.model)
        follows = self.tokenizer is None or isinstance(self.tokenizer, FollowingStr)
        self.tokenizer = FollowingStr(self.model) if follows else _path_or_name("tokenizer", self.tokenizer)
        check_choice("tokenizer_mode", self.tokenizer_mode, ("auto", "slow"))
        if not isinstance(self.dtype, str):  # a torch.dtype prints as "torch.float32"
            self.dtype = str(self.dtype).removeprefix("torch.")
        check_choice("dtype", self.dtype, ("auto", *_DTYPES))
        if self.max_model_len is not None:
            check_int("max_model_len", self.max_model_len, 1)
        check_int("seed", self.seed, 0)
        if self.seed > MAX_SEED:
            raise wrong("seed", f"be in [0, {MAX_SEED}]", self.seed)
        if self.device is not None and not (
            isinstance(self.device, str) and re.fullmatch(r"cpu|cuda(:\d+)?", self.device)
        ):
            raise wrong("device", "be 'cpu', 'cuda' or 'cuda:<index>'", self.device, "None picks one")
        check_choice("load_format", self.load_format, ("auto", "dummy"))
        if self.attention_backend is not None:
            check_str("attention_backend", self.attention_backend)
        for name in ("trust_remote_code", "skip_tokenizer_init", "enforce_eager", "batch_invariant", "quantize_head"):
            check_bool(name, getattr(self, name))
        check_int("max_logprobs", self.max_logprobs, -1, way_out="-1 allows any number")
        if self.quantization is not None:
            check_choice(
                "quantization", self.quantization, ("w4a16", "w4a8", "w8a8", "fp8", "gptq", "awq", "compressed-tensors")
            )

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The torch dtype that was asked for; None for "auto"."""
        if self.dtype == "auto":
            return None
        import torch

        dtype = getattr(torch, _DTYPES[self.dtype])
        assert isinstance(dtype, torch.dtype)  # for the type checker: getattr has no type
        return dtype


@dataclass
class CacheConfig:
    """How the KV cache is laid out and how much memory it may take.

    `block_size` tokens share a block. On a GPU, weights, activations and blocks together may use
    `gpu_memory_utilization` of its memory; `num_kv_blocks` overrides what follows from that. `swap_space`
    GiB of CPU memory take the blocks of preempted sequences. `kv_cache_dtype` "fp8" (or "fp8_e4m3", which is the
    same) keeps keys and values in 8 bits, "int8" as codes of 8 bits with a scale for each token and head; "auto" keeps
    them in the model's dtype.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    swap_space: float = 4.0
    enable_prefix_caching: bool = False
    num_kv_blocks: int = None  # type: ignore[assignment]  # None until the model is known
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "int8"] = "auto"

    def __post_init__(self) -> None:
        check_int("block_size", self.block_size, 1)
        if not 0 < check_float("gpu_memory_utilization", self.gpu_memory_utilization) <= 1:
            raise wrong("gpu_memory_utilization", "be in (0, 1]", self.gpu_memory_utilization)
        if check_float("swap_space", self.swap_space) < 0:
            raise wrong("swap_space", "be non-negative", self.swap_space, "it is in GiB, 0 turns swapping off")
        check_bool("enable_prefix_caching", self.enable_prefix_caching)
        if self.num_kv_blocks is not None:
            check_int("num_kv_blocks", self.num_kv_blocks, 1)
        check_choice("kv_cache_dtype", self.kv_cache_dtype, ("auto", "fp8", "fp8_e4m3", "int8"))


@dataclass
class SchedulerConfig:
    """How much work goes into one step, and which requests come first.

    A step computes at most `max_num_batched_tokens` tokens of at most `max_num_seqs` sequences.
    `enable_chunked_prefill` lets a long prompt come in over several steps: at most `max_num_partial_prefills`
    prompts at a time, and at most `long_prefill_token_threshold` tokens of each per step (0: as many as fit;
    None: half of what fits, and more where no other prompt can use it).
    When memory runs out a sequence is preempted: its blocks are dropped and recomputed, or swapped out;
    "auto" picks. `async_scheduling` schedules the next step before the tokens of this one are known; None
    does so where it pays, on a GPU. `max_n` is the largest n and best_of that a request may ask for (-1: any).
    `performance_mode` decides what a step's budget is where none is given: "interactivity" keeps the gaps between
    two tokens short, "throughput" makes fewer and larger steps.
    """

    max_num_batched_tokens: int = None  # type: ignore[assignment]  # None until the model is known
    max_num_seqs: int = 256
    max_model_len: int = None  # type: ignore[assignment]  # None until the model is known
    enable_chunked_prefill: bool = False
    preemption_mode: Literal["auto", "recompute", "swap"] = "auto"
    policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int | None = None
    max_num_partial_prefills: int = 1
    async_scheduling: bool | None = None
    max_n: int = 16_384
    performance_mode: Literal["interactivity", "throughput"] = "interactivity"

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1)
        check_int("max_num_seqs", self.max_num_seqs, 1)
        check_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        check_choice("preemption_mode", self.preemption_mode, ("auto", "recompute", "swap"))
        check_choice("policy", self.policy, ("fcfs", "priority"))
        if self.long_prefill_token_threshold is not None:
            check_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        check_int("max_num_partial_prefills", self.max_num_partial_prefills, 1)
        if self.async_scheduling is not None:
            check_bool("async_scheduling", self.async_scheduling)
        if self.max_n != -1:
            check_int("max_n", self.max_n, 1, way_out="-1 allows any number")
        check_choice("performance_mode", self.performance_mode, ("interactivity", "throughput"))


@dataclass
class EngineConfig:
    """All of it. `max_model_len` is one number: given in either layer, it holds in both."""

    model_config: ModelConfig
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        for layer in fields(self):
            expected = _LAYERS[layer.name]
            if not isinstance(getattr(self, layer.name), expected):
                raise wrong(layer.name, f"be a {expected.__name__}", getattr(self, layer.name))
        from_model, given = self.model_config.max_model_len, self.scheduler_config.max_model_len
        from_scheduler = None if isinstance(given, FollowingInt) else given
        if from_model is not None and from_scheduler is not None and from_model != from_scheduler:
            raise ValueError(
                f"max_model_len must be the same in both configs, got {from_model} in model_config and "
                f"{from_scheduler} in scheduler_config; give it in model_config alone"
            )
        value = from_scheduler if from_model is None else from_model
        if value is not None:
            self.set_max_model_len(value)

    def set_max_model_len(self, value: int) -> None:
        """Write the one number into copies of both layers: a config used for two engines stays as it was."""
        self.model_config = replace(self.model_config, max_model_len=value)
        self.scheduler_config = replace(self.scheduler_config, max_model_len=FollowingInt(value))

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> EngineConfig:
        """Build it from flat keywords, each of which goes to the layer that has a field of that name.

        `model` left out or None is the embedded model. An unknown keyword is an error: if a misspelt setting
        were accepted and ignored, finding out why it does nothing would take hours.
        """
        layers: dict[str, dict[str, Any]] = {layer: {} for layer in _LAYERS}
        for name, value in kwargs.items():
            layer = _FIELD_LAYER.get(name)
            if layer is None:
                hint = did_you_mean(name, _FIELD_LAYER) or "valid ones: " + ", ".join(sorted(_FIELD_LAYER))
                raise TypeError(f"unknown keyword {name!r}; {hint}")
            layers[layer][name] = value
        if layers["model_config"].get("model") is None:
            layers["model_config"]["model"] = EMBEDDED_MODEL
        return cls(**{layer: _LAYERS[layer](**values) for layer, values in layers.items()})


_LAYERS: dict[str, type[Any]] = {
    "model_config": ModelConfig,
    "cache_config": CacheConfig,
    "scheduler_config": SchedulerConfig,
}
# Reversed, so that the first layer wins: max_model_len is the model's, and copied down.
_FIELD_LAYER = {f.name: layer for layer in reversed(_LAYERS) for f in fields(_LAYERS[layer])}


def _path_or_name(name: str, value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    check_str(name, value)
    assert isinstance(value, str)  # for the type checker: check_str has just made sure of it
    return value
