"""The attention layer of a model, the interface of the backends that compute it, and the registry that picks one.

A backend owns two things: the cache's layout of K and V, and how queries read them. Everything else (which sequence
owns which block, when one is freed) is decided elsewhere and reaches it as AttentionMetadata. The layer knows neither
sequences nor blocks: the code that runs the model owns the cache, and binds it before the first forward.

vLLM: v1/attention/backend.py, v1/attention/backends/registry.py, model_executor/layers/attention/attention.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple

import torch
from torch import nn

from folovllm.attention.metadata import AttentionMetadata


@dataclass(frozen=True)
class AttentionExtras:
    """What some models' layers compute beside softmax(q @ k * scale) @ v over all keys so far."""

    sliding_window: int | None = None
    """How many keys a query sees, its own among them."""
    logits_soft_cap: float | None = None
    """Scores are cap * tanh(score / cap) (Gemma 2)."""
    sinks: torch.Tensor | None = field(default=None, compare=False)
    """[num_heads]: the score of a key more that every query sees and that has no value (GPT-OSS)."""

    def __bool__(self) -> bool:
        return any(extra is not None for extra in (self.sliding_window, self.logits_soft_cap, self.sinks))


NO_EXTRAS = AttentionExtras()


class FusedRope(NamedTuple):
    """Norm and rotation of q and k, and the way of k and v into the cache, as a kernel for decodes does them, too.

    weight: of q's norm and of k's, [2, head_size], or None.  cos, sin: [num_tokens, 1, head_size] float32.  slots:
    [num_tokens] int64, block * block_size + offset."""

    weight: torch.Tensor | None
    eps: float
    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor


class AttentionBackend(ABC):
    """Stateless but for the shape of the heads; one instance serves all layers of a model that compute the same."""

    name: str
    reads_block_tables = True
    """False: a sequence must be in a single block."""
    stores_as_is = True
    """Whether `write` puts K and V into their slots cast to the cache's dtype and no more, so that a kernel which has
    them at hand may do it instead."""
    supports_cuda_graphs = False
    """True: in a batch of decodes, the shapes of the tensors alone decide which kernels `forward` and `write` launch,
    and with which arguments. A captured launch is then right for any content that the tensors hold at its replay."""
    supports_prompt_graphs = False
    """True: so do they where decodes come first and prompts behind them. A decode in front may then have no key."""
    supports_fused_decode = False
    """Whether it has fused_forward()."""
    supports_extras = False
    """Whether it computes what AttentionExtras has."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_size: int, scale: float, extras: AttentionExtras = NO_EXTRAS
    ) -> None:
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.scale, self.extras = scale, extras
        self.group_size = num_heads // num_kv_heads  # query heads that share one KV head

    @classmethod
    @abstractmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        """Why this backend cannot run on `device` here, or None if it can."""

    @classmethod
    def only_by_name(cls, device: torch.device) -> bool:
        """True where this backend can run on `device`, but is a bad choice unless the user asks for it by name."""
        return False

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of one layer's cache; index 0 of the first dimension is K, 1 is V."""
        return (2, num_blocks, block_size, self.num_kv_heads, self.head_size)

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store k, v [num_tokens, num_kv_heads, head_size] at their slots."""
        flat = kv_cache.view(2, -1, self.num_kv_heads, self.head_size)  # blocks end to end: a slot is a row
        flat[0].index_copy_(0, slot_mapping, k.to(kv_cache.dtype))
        flat[1].index_copy_(0, slot_mapping, v.to(kv_cache.dtype))

    def warm_up(  # noqa: B027 (most compile nothing)
        self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None
    ) -> None:
        """Compile what is compiled at its first use, before any request. May write to block 0 of `kv_cache`, which no
        sequence owns. dtype: of queries, keys and values; None: the cache's."""

    @abstractmethod
    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Causal attention of q [num_tokens, num_heads, head_size] over each sequence's cache; same shape out.

        The new tokens' K and V have been written already. Query j of a sequence with m queries and n keys is at
        position n - m + j and sees keys 0 .. n - m + j, or the last of them where there is a window.
        """


class Attention(nn.Module):
    """Attention of one decoder layer. bind() sets `kv_cache`, `backend`, and `group`: whose block tables are read."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_size: int, scale: float | None = None,
        extras: AttentionExtras = NO_EXTRAS,
    ) -> None:  # fmt: skip
        """scale: None is 1 / sqrt(head_size)."""
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.scale, self.extras = head_size**-0.5 if scale is None else scale, extras
        self.backend: AttentionBackend | None = None
        self.kv_cache: torch.Tensor | None = None
        self.group = 0

    def make_backend(self, backend: type[AttentionBackend]) -> AttentionBackend:
        """One that computes this layer; `backend` must support extras where the layer has some."""
        shape = self.num_heads, self.num_kv_heads, self.head_size, self.scale
        return backend(*shape, self.extras) if self.extras else backend(*shape)

    def bind(self, backend: AttentionBackend, kv_cache: torch.Tensor, group: int = 0) -> None:
        self.backend, self.kv_cache, self.group = backend, kv_cache, group

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """q [num_tokens, num_heads, head_size], k and v [num_tokens, num_kv_heads, head_size] -> q's shape."""
        if self.backend is None or self.kv_cache is None:
            raise RuntimeError("the attention layer has no KV cache: call bind() before the first forward")
        metadata = metadata.of_group(self.group)
        self.backend.write(k, v, self.kv_cache, metadata.slot_mapping)
        return self.backend.forward(q, self.kv_cache, metadata)


# name -> where the class lives. Imported when asked for, so that a backend may need a package that is not installed.
# The order is the order of preference.
BACKENDS = {
    "triton": "folovllm.attention.backends.triton.TritonBackend",
    "turing": "folovllm.attention.backends.turing.TuringBackend",
    "cpu": "folovllm.attention.backends.cpu.CPUBackend",
    "paged_torch": "folovllm.attention.backends.paged_torch.PagedTorchBackend",
    "dense": "folovllm.attention.backends.dense.DenseBackend",
}


def get_backend_class(name: str) -> type[AttentionBackend]:
    """Raises ValueError for an unknown name, listing the known ones."""
    if name not in BACKENDS:
        raise ValueError(f"attention_backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    module, _, cls = BACKENDS[name].rpartition(".")
    return getattr(import_module(module), cls)


def select_backend(name: str | None, device: torch.device, *, extras: bool = False) -> type[AttentionBackend]:
    """The named backend, or the first that can run on `device`. extras: the model has layers with AttentionExtras.

    Raises:
        ValueError: the named one is unknown or cannot run here; the text says why.
    """
    if name is not None:
        backend = get_backend_class(name)
        if (reason := backend.unavailable_reason(device)) is not None:
            raise ValueError(f"attention_backend {name!r} cannot run on {device}: {reason}")
        if extras and not backend.supports_extras:
            raise ValueError(
                f"attention_backend {name!r} cannot compute this model: it has no sliding window, soft-cap or sinks; "
                f"leave attention_backend out, or give 'paged_torch'"
            )
        return backend
    known = [each for each in map(get_backend_class, BACKENDS) if each.supports_extras or not extras]
    return next(
        backend for backend in known if backend.unavailable_reason(device) is None and not backend.only_by_name(device)
    )
