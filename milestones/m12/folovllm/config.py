"""The engine's configuration, in layers: the model, the KV cache, the scheduler, the ranks, and all of them together.

Each layer is read by one part of the engine and checks its own fields when it is made, so a wrong value is
refused before anything is loaded. None means "decide when the model is known".

vLLM: vllm/config/
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.lora.config import LoRAConfig
from folovllm.pooling_params import PoolerConfig
from folovllm.speculative_config import SpeculativeConfig
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
    """Which model, and how to load it. These lines are the help of the options, too.

    model: a local Hugging Face folder, a hub id, or 'embedded', the small one that ships here (default: embedded)
    tokenizer: folder or hub id of another tokenizer (default: the model's)
    tokenizer_mode: auto alone: transformers has no other than fast ones any more
    trust_remote_code: run code that the model's folder brings along
    dtype: auto, float32, bfloat16 or float16; auto: the checkpoint's own where this machine is fast with it
    max_model_len: longest prompt and output together, in tokens (default: the model's own)
    seed: the same seed draws the same text
    device: cpu, cuda, cuda:N, or mps, a Mac's GPU (default: cuda where torch finds a GPU, else cpu)
    load_format: auto, or dummy: random weights of the model's shape
    model_impl: folovllm: our decoder; transformers: its own code, with our attention; auto: ours where it can be
    runner: generate: it draws tokens; pooling: its answer is a vector; auto: as the model's folder says
    skip_tokenizer_init: load no tokenizer: prompts are token ids, and there is no text
    attention_backend: what computes attention; folovllm info lists them (default: the fastest that can run)
    enforce_eager: no CUDA graphs; on a CPU, layer by layer
    max_logprobs: most log-probabilities that a request may ask for at each token; -1: any number
    batch_invariant: the same bits, whatever else is in the batch; slower
    quantization: w4a16, w4a8, w8a8 or fp8: round a checkpoint's weights (default: as its config.json says)
    quantize_head: beside --quantization w4a16 and the like: the head's weights in 8 bits, too
    logits_processors: classes of yours, as MODULE:CLASS, that edit logits (default: none)
    hf_overrides: fields that are other than config.json says, as JSON: '{"rope_theta": 1e6}' (default: none)
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
    model_impl: Literal["auto", "folovllm", "transformers"] = "auto"
    runner: Literal["auto", "generate", "pooling"] = "auto"
    skip_tokenizer_init: bool = False
    attention_backend: str | None = None
    enforce_eager: bool = False
    max_logprobs: int = 20
    batch_invariant: bool = False
    quantization: Literal["w4a16", "w4a8", "w8a8", "fp8", "gptq", "awq", "compressed-tensors", "gguf"] | None = None
    quantize_head: bool = False
    logits_processors: Sequence[str | type[Any]] | None = None
    hf_overrides: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.model = _path_or_name("model", self.model)
        follows = self.tokenizer is None or isinstance(self.tokenizer, FollowingStr)
        self.tokenizer = FollowingStr(self.model) if follows else _path_or_name("tokenizer", self.tokenizer)
        if not isinstance(self.dtype, str):  # a torch.dtype prints as "torch.float32"
            self.dtype = str(self.dtype).removeprefix("torch.")
        if self.dtype in ("fp16", "fp32"):
            raise wrong("dtype", "be a name that torch has", self.dtype, f"did you mean 'float{self.dtype[2:]}'?")
        check_choice("dtype", self.dtype, ("auto", *_DTYPES))
        check_int("max_logprobs", self.max_logprobs, -1, way_out="-1 allows any number")
        check_types(self, seed=0, max_logprobs=-1)
        if self.seed > MAX_SEED:
            raise wrong("seed", f"be in [0, {MAX_SEED}]", self.seed)
        if self.device is not None and not (
            isinstance(self.device, str) and re.fullmatch(r"cpu|cuda(:\d+)?|mps", self.device)
        ):
            raise wrong("device", "be 'cpu', 'cuda' or 'cuda:<index>'", self.device, "None picks one, 'mps' is a Mac's")
        if self.attention_backend is not None:
            check_str("attention_backend", self.attention_backend)
        if isinstance(self.logits_processors, str) or not all(
            isinstance(each, type) or (isinstance(each, str) and ":" in each) for each in self.logits_processors or ()
        ):
            raise wrong("logits_processors", "be a list of classes, or of 'module:Class'", self.logits_processors)
        if not isinstance(self.hf_overrides, dict | None):
            raise wrong("hf_overrides", "be a dict of fields of config.json", self.hf_overrides)

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

    block_size: tokens in a block of the KV cache
    gpu_memory_utilization: share of a GPU's memory that all of it may take
    swap_space: GiB of CPU memory for the blocks of preempted sequences; 0: none
    enable_prefix_caching: find what earlier prompts have computed, where a prompt begins alike
    num_kv_blocks: blocks of the KV cache (default: what fits into memory)
    kv_cache_dtype: auto: keys and values are kept in the model's dtype; fp8, int8: in 8 bits
    kv_cache_memory_bytes: as many blocks as fit into these bytes (default: see --num-kv-blocks)
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    swap_space: float = 4.0
    enable_prefix_caching: bool = False
    num_kv_blocks: int = None  # type: ignore[assignment]  # None until the model is known
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "int8"] = "auto"
    kv_cache_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if not 0 < check_float("gpu_memory_utilization", self.gpu_memory_utilization) <= 1:
            raise wrong("gpu_memory_utilization", "be in (0, 1]", self.gpu_memory_utilization)
        if check_float("swap_space", self.swap_space) < 0:
            raise wrong("swap_space", "be non-negative", self.swap_space, "it is in GiB, 0 turns swapping off")
        if self.kv_cache_memory_bytes is not None and self.num_kv_blocks is not None:
            raise ValueError("kv_cache_memory_bytes must not be given beside num_kv_blocks: either says how many")


@dataclass
class SchedulerConfig:
    """How much work goes into one step, and which requests come first.

    max_num_batched_tokens: most tokens in a step (default: by device and --performance-mode)
    max_num_seqs: most in a step
    enable_chunked_prefill: let a long prompt come in over several steps
    preemption_mode: what becomes of a sequence's blocks when memory runs out: recompute, swap, or auto
    policy: who comes first: fcfs or priority
    long_prefill_token_threshold: most tokens of each a step; 0: any number (default: half of what fits)
    max_num_partial_prefills: prompts that may come in so at a time
    async_scheduling: schedule a step before the tokens of the last are known (default: on for a GPU)
    max_n: largest n and best_of that a request may ask for; -1: any number
    performance_mode: interactivity: short gaps between tokens; throughput: fewer and larger steps
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
        if self.max_n != -1:
            check_int("max_n", self.max_n, 1, way_out="-1 allows any number")
        check_types(self, long_prefill_token_threshold=0, max_n=-1)


@dataclass
class ParallelConfig:
    """Over how many ranks the model is cut: each is a process, with a GPU or a share of the CPU's cores.

    tensor_parallel_size: ranks that have a part of the model each: a GPU, or a share of the CPU's cores
    distributed_timeout_seconds: a rank for which the others wait longer is given up, and the engine with it
    """

    tensor_parallel_size: int = 1
    distributed_timeout_seconds: int = 30

    def __post_init__(self) -> None:
        check_types(self)


@dataclass
class EngineConfig:
    """All of it. `max_model_len` is one number: given in either layer, it holds in both. `kv_cache_groups` and
    `pooler_config` are for the engine to say: what follows from the windows of the model's layers, and what its answer
    is where that is a vector (None: it draws tokens)."""

    model_config: ModelConfig
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative_config: SpeculativeConfig | None = None
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    kv_cache_groups: KVCacheGroups = None  # type: ignore[assignment]  # None until the model is known
    lora_config: LoRAConfig = field(default_factory=LoRAConfig)
    pooler_config: PoolerConfig | None = None

    def __post_init__(self) -> None:
        for name, expected in _LAYERS.items():
            if not isinstance(getattr(self, name), expected):
                raise wrong(name, f"be a {expected.__name__}", getattr(self, name))
        if self.kv_cache_groups is None:
            self.kv_cache_groups = KVCacheGroups(block_size=self.cache_config.block_size)
        if self.speculative_config is not None:
            self.speculative_config = SpeculativeConfig.of(self.speculative_config)
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
        speculative = kwargs.pop("speculative_config", None)
        for name, value in kwargs.items():
            layer = _FIELD_LAYER.get(name)
            if layer is None:
                names = {*_FIELD_LAYER, "speculative_config"}
                hint = did_you_mean(name, names) or "valid ones: " + ", ".join(sorted(names))
                raise TypeError(f"unknown keyword {name!r}; {hint}")
            layers[layer][name] = value
        if layers["model_config"].get("model") is None:
            layers["model_config"]["model"] = EMBEDDED_MODEL
        made = {layer: _LAYERS[layer](**values) for layer, values in layers.items()}
        return cls(**made, speculative_config=speculative)


_LAYERS: dict[str, type[Any]] = {
    "model_config": ModelConfig, "cache_config": CacheConfig, "scheduler_config": SchedulerConfig,
    "parallel_config": ParallelConfig, "lora_config": LoRAConfig,
}  # fmt: skip
# Reversed, so that the first layer wins: max_model_len is the model's, and copied down.
_FIELD_LAYER = {f.name: layer for layer in reversed(_LAYERS) for f in fields(_LAYERS[layer])}


def check_types(config: object, **least: int) -> None:
    """Of a dataclass: each field that is a bool, one of several words or a whole number. None is right where it is the
    default. `least`: of a number, where that is not 1."""
    for name, hint in get_type_hints(type(config)).items():
        value, kinds = getattr(config, name), (hint, *get_args(hint))
        if value is None and getattr(type(config), name, ...) is None:
            continue
        if bool in kinds:
            check_bool(name, value)
        elif int in kinds:
            check_int(name, value, least.get(name, 1))
        for kind in kinds:
            if get_origin(kind) is Literal:
                check_choice(name, value, get_args(kind))


def _path_or_name(name: str, value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    check_str(name, value)
    assert isinstance(value, str)  # for the type checker: check_str has just made sure of it
    return value
