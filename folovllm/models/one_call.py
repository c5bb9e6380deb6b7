"""All layers of a decoder in one call of our own compiled code.

CompiledOps makes one call of each operator between the products. A call from Python takes a few microseconds while
Python's own code and data are in the caches. A product of milliseconds pushes them out: then it takes some 50.
csrc/decoder.cpp calls the same kernels on the same numbers, one after the other. So each bit is what the modules
compute; only the weights of experts may differ in their last one.

Layers run one by one, as modules, where the cache is not one that the kernels read. A hook on a module of a layer is
not called here: enforce_eager=True runs all layers one by one.

vLLM: none; it compiles and records its layers one by one (compilation/)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ctypes import Array, Structure, addressof, byref
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from folovllm.attention.backend import Attention
from folovllm.attention.backends.cpu import HEAD_SIZE_STEP, CPUBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.compiled_lora import CompiledLoRAWeights
from folovllm.layers.compiled_ops import CompiledOps, PackedMethod
from folovllm.layers.linear import Linear, LinearMethod
from folovllm.layers.moe import SparseMoE
from folovllm.layers.norm import RMSNorm
from folovllm.layers.rotary import Rotary
from folovllm.lora.mapping import LoRAMapping
from folovllm.models.decoder import MLP, DecoderLayer
from folovllm.utils.cpu_kernels import DTYPE_NAMES, FLOAT, INT, POINTER, function
from folovllm.utils.recycled_memory import RESULTS

# Rows that a call hands to layers, about: an interrupt waits until the call ends.
ROWS_OF_CALL = 8192

SMALL = ("gate", "shared_gate", "shared_gate_up", "shared_down")

# What csrc/kernels.h declares, field by field in the same order.

PRODUCT = ("weight", "bias", "adapters")


class Rows(Structure):
    _fields_ = [("num_groups", INT), *((name, POINTER) for name in ("slots", "ends", "rows"))]

    @classmethod
    def of(cls, mapping: LoRAMapping | None) -> Rows:
        """Good as long as the mapping."""
        return cls() if mapping is None else cls(len(mapping.groups.slots), *(at.data_ptr() for at in mapping.groups))


class Shape(Structure):
    _fields_ = [
        *((name, INT) for name in ("hidden", "intermediate", "num_heads", "num_kv_heads", "head_size", "block_size")),
        ("group", POINTER),
        *((name, FLOAT) for name in ("eps", "scale")),
    ]


class ExpertsOfLayer(Structure):
    _fields_ = [
        *((name, INT) for name in ("count", "top_k", "size", "shared_size", "renormalize")),
        *((f"{name}_{part}", POINTER) for name in SMALL for part in PRODUCT),
        ("products", POINTER),
    ]


class Layer(Structure):
    _fields_ = [
        *((name, POINTER) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
        *((f"{name}_{part}", POINTER) for name in ("qkv", "o", "gate_up", "down") for part in PRODUCT),
        *((name, POINTER) for name in ("experts", "keys", "values", "extras")),
    ]


class Step(Structure):
    _fields_ = [
        *((name, INT) for name in ("tokens", "num_decodes", "num_prefills", "max_blocks", "num_wanted")),
        *((name, POINTER) for name in ("cos", "sin", "slots", "queries", "decodes", "spans", "prefills")),
        *((name, POINTER) for name in ("seq_lens", "tables", "wanted")),
        *((name, Rows) for name in ("adapted", "adapted_wanted")),
    ]


@dataclass
class Prepared:
    """What stays the same from step to step, while the layers have the same caches."""

    run: Any
    """The compiled function, which takes these two."""
    shape: Shape
    layers: Array[Layer]
    backend: CPUBackend
    """Of the first layer; all of them read the same sequences."""
    scratch: int
    """Numbers of a token between the first operator and the last."""
    experts: list[Any]
    """What the layers' tables point to."""


class OneCallOps(CompiledOps):
    """Of one model: it keeps the addresses of its layers' weights and caches."""

    def __init__(self, dtype: torch.dtype, linear: LinearMethod | None = None) -> None:
        super().__init__(dtype, linear)
        self.prepared: Prepared | None = None
        """None: these caches cannot be read here."""
        self._layers: Iterable[nn.Module] | None = None
        self._bound: list[tuple[Attention, Any, torch.Tensor | None]] = []
        """The layers' attentions, with the backends and caches that they had when `prepared` was made."""

    def run_layers(
        self, layers: Iterable[nn.Module], norm: RMSNorm, x: torch.Tensor, rotary: Rotary, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Where metadata.last_rows_only says so, a row that is not the last one of its sequence is zero."""
        prepared = self.prepared_for(layers, norm)
        if prepared is None:
            return super().run_layers(layers, norm, x, rotary, metadata)
        residual, num_layers = x.to(self.flowing), len(prepared.layers)
        out = RESULTS.empty(residual.shape, residual.dtype)
        wanted = None
        if metadata.last_rows_only and metadata.max_query_len > 1:
            wanted = torch.tensor([end - 1 for start, end, _ in metadata.spans if end > start], dtype=torch.int64)
            out.zero_()
        adapted_wanted = None if metadata.lora is None or wanted is None else metadata.lora.take(wanted)
        step = _step(prepared.backend, metadata, rotary, wanted, adapted_wanted)
        scratch = RESULTS.empty((len(residual), prepared.scratch), residual.dtype)
        together = max(1, ROWS_OF_CALL // max(len(residual), 1))
        for first in range(0, num_layers, together):
            prepared.run(
                byref(prepared.shape), byref(step), prepared.layers, first, min(first + together, num_layers),
                num_layers, norm.weight.data_ptr(), residual.data_ptr(), scratch.data_ptr(), out.data_ptr(),
            )  # fmt: skip
        if self.group is not None:
            self.group.check()
        return out

    def prepared_for(self, layers: Iterable[nn.Module], norm: RMSNorm) -> Prepared | None:
        """None: these have to run one by one."""
        is_prepared = self._layers is layers
        for attention, backend, cache in self._bound:
            is_prepared &= attention.backend is backend and attention.kv_cache is cache
        if not is_prepared:
            self._prepare(cast(list[DecoderLayer], layers), norm)
        return self.prepared

    def _prepare(self, layers: list[DecoderLayer], norm: RMSNorm) -> None:
        attentions, self._layers = [layer.self_attn.attn for layer in layers], layers
        self._bound = [(attention, attention.backend, attention.kv_cache) for attention in attentions]
        self.prepared = _prepared(layers, norm.eps, self.flowing)
        if self.group is not None and self.prepared is not None:
            self.prepared.shape.group = self.group.collectives.address
            if self.prepared.shape.group is None:  # its sums are made elsewhere
                self.prepared = None


def _step(
    backend: CPUBackend, metadata: AttentionMetadata, rotary: Rotary, wanted: torch.Tensor | None,
    adapted_wanted: LoRAMapping | None,
) -> Step:  # fmt: skip
    lists, (cos, sin) = backend.lists(metadata), rotary
    return Step(
        tokens=len(cos), num_decodes=len(lists.decodes), num_prefills=len(lists.prefills),
        max_blocks=lists.block_tables.stride(0), num_wanted=0 if wanted is None else len(wanted),
        cos=cos.data_ptr(), sin=sin.data_ptr(), slots=metadata.slot_mapping.data_ptr(),
        queries=lists.queries.data_ptr(), decodes=lists.decodes.data_ptr(),
        spans=lists.spans.data_ptr(), prefills=lists.prefills.data_ptr(),
        seq_lens=lists.seq_lens.data_ptr(), tables=lists.block_tables.data_ptr(),
        wanted=None if wanted is None else wanted.data_ptr(), adapted=Rows.of(metadata.lora),
        adapted_wanted=Rows.of(adapted_wanted),
    )  # fmt: skip


def _prepared(layers: list[DecoderLayer], eps: float, flowing: torch.dtype) -> Prepared | None:
    attention, o = layers[0].self_attn.attn, layers[0].self_attn.o_proj
    backend, cache = attention.backend, attention.kv_cache
    if not isinstance(backend, CPUBackend) or cache is None:
        return None
    if any(layer.self_attn.attn.group for layer in layers):  # the step has one block table
        return None
    if (flowing, cache.dtype) not in backend.dtypes or attention.head_size % HEAD_SIZE_STEP:
        return None
    dense = [layer.mlp.down_proj.in_features for layer in layers if isinstance(layer.mlp, MLP)]
    shape = Shape(
        hidden=o.out_features, intermediate=max(dense, default=0), num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads, head_size=attention.head_size, block_size=cache.shape[2],
        eps=eps, scale=attention.scale,
    )  # fmt: skip
    experts = {layer: _experts(layer.mlp) for layer in layers if isinstance(layer.mlp, SparseMoE)}
    products = [product for layer in layers for product in _products(layer).values()]
    products += [product for mlp in _mlps(layers) for product in (mlp.gate_up_proj, mlp.down_proj)]
    methods = {cast(PackedMethod, product.method).kernel(product) for product in products}
    if len(methods) != 1:  # some layers are quantised, and others are not
        return None
    run = function(f"decoder_{DTYPE_NAMES[flowing]}_{methods.pop()}_{DTYPE_NAMES[cache.dtype]}")
    # Twice x, and all heads with what attention makes of them, or gate, up and their product, or what experts need.
    heads = (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    of_experts = (_numbers(each, shape.hidden, 4 // flowing.itemsize) for each, _ in experts.values())
    scratch = 2 * shape.hidden + max(heads, 3 * shape.intermediate, *of_experts)
    pointers = [_pointers(layer, experts.get(layer)) for layer in layers]
    return Prepared(run, shape, (Layer * len(layers))(*pointers), backend, scratch, [*experts.values()])


def _pointers(layer: DecoderLayer, experts: tuple[ExpertsOfLayer, Any] | None) -> Layer:
    attention, backend, cache = layer.self_attn, layer.self_attn.attn.backend, layer.self_attn.attn.kv_cache
    assert cache is not None  # for the type checker
    assert isinstance(backend, CPUBackend)
    found = Layer(
        input_norm=layer.input_layernorm.weight.data_ptr(), post_norm=layer.post_attention_layernorm.weight.data_ptr(),
        experts=None if experts is None else addressof(experts[0]),
        keys=cache[0].data_ptr(), values=cache[1].data_ptr(),
    )  # fmt: skip
    if backend.compiled_extras is not None:
        found.extras = addressof(backend.compiled_extras)
    if attention.qk_norm is not None:
        found.q_norm, found.k_norm = (weight.data_ptr() for weight in attention.qk_norm.weight)
    for name, linear in _products(layer).items():
        _point(found, name, linear)
    return found


def _experts(mlp: SparseMoE) -> tuple[ExpertsOfLayer, Any]:
    """What the compiled function reads, and what that points to."""
    each = [product for expert in _mlps(mlp.experts) for product in (expert.gate_up_proj, expert.down_proj)]
    products = (POINTER * (len(PRODUCT) * len(each)))(*(address for product in each for address in _addresses(product)))
    spec = mlp.spec
    found = ExpertsOfLayer(
        count=spec.num_experts, top_k=spec.top_k, size=each[1].in_features, renormalize=spec.renormalize,
        products=addressof(products),
    )  # fmt: skip
    _point(found, "gate", mlp.gate)
    if isinstance(shared := mlp.shared_expert, MLP) and mlp.shared_expert_gate is not None:
        found.shared_size = shared.down_proj.in_features
        parts = (mlp.shared_expert_gate, shared.gate_up_proj, shared.down_proj)
        for name, product in zip(SMALL[1:], parts, strict=True):
            _point(found, name, product)
    return found, products


def _numbers(experts: ExpertsOfLayer, hidden: int, of_float: int) -> int:
    """That csrc/decoder.cpp needs for a row; of_float: how many of them are as large as a float32."""
    parts = experts.top_k + (experts.shared_size > 0)
    numbers = (1 + parts) * hidden + 3 * max(experts.size, experts.shared_size)
    return numbers + of_float * (hidden + experts.count + parts)


def _mlps(modules: Iterable[nn.Module]) -> Iterator[MLP]:
    return (each for module in modules for each in module.modules() if isinstance(each, MLP))


def _point(table: Structure, name: str, product: Linear) -> None:
    for kind, address in zip(PRODUCT, _addresses(product), strict=True):
        setattr(table, f"{name}_{kind}", address)


def _addresses(product: Linear) -> tuple[int, int | None, int | None]:
    """In the order of PRODUCT."""
    bias = None if product.bias is None else product.bias.data_ptr()
    pairs = product.lora
    return product.weight.data_ptr(), bias, addressof(pairs.table) if isinstance(pairs, CompiledLoRAWeights) else None


def _products(layer: DecoderLayer) -> dict[str, Linear]:
    attention, mlp = layer.self_attn, layer.mlp
    found = {"qkv": attention.qkv_proj, "o": attention.o_proj}
    return found | ({"gate_up": mlp.gate_up_proj, "down": mlp.down_proj} if isinstance(mlp, MLP) else {})
