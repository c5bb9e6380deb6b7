"""All layers of a decoder in one call of our own compiled code.

fused_compiled.py makes one call of each operator between the products. A call from Python takes a few microseconds
while Python's own code and data lie in the caches. A product of milliseconds pushes them out: then it takes some 50.
csrc/decoder.cpp calls the same kernels on the same numbers, one after the other. So each bit is what the modules
compute.

compile_decoder() changes the class of a model's decoder, where its layers are what fused_compiled.py makes of them.
Layers run one by one, as modules, where the cache is not one that the kernels read, and where a module of
a layer has a hook, which would see nothing here. `enforce_eager` leaves the decoder as it is.

vLLM: none; it compiles and records its layers one by one (compilation/)
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import POINTER as POINTER_TO
from ctypes import Array, Structure, byref
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.backends.cpu import CPUBackend
from folovllm.attention.kernels.cpu import DTYPES, HEAD_SIZE_STEP
from folovllm.attention.layer import Attention
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.kernels.cpu import linear_name
from folovllm.models.decoder import Decoder, DecoderForCausalLM, DecoderLayer
from folovllm.models.fused_compiled import CompiledLinear, CompiledMLP, CompiledRMSNorm, CompiledSelfAttention
from folovllm.utils.cpu_kernels import DTYPE_NAMES, FLOAT, INT, POINTER, function
from folovllm.utils.recycled_memory import RESULTS

# Rows that a call hands to layers, about: an interrupt waits until the call ends.
ROWS_OF_CALL = 8192

# What csrc/decoder.cpp reads, field by field in the same order.


class Shape(Structure):
    _fields_ = [
        *((name, INT) for name in ("hidden", "intermediate", "num_heads", "num_kv_heads", "head_size", "block_size")),
        *((name, FLOAT) for name in ("eps", "scale")),
    ]


class Layer(Structure):
    _fields_ = [
        *((name, POINTER) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
        *((f"{name}_{part}", POINTER) for name in ("qkv", "o", "gate_up", "down") for part in ("weight", "bias")),
        *((name, POINTER) for name in ("keys", "values")),
    ]


class Step(Structure):
    _fields_ = [
        *((name, INT) for name in ("tokens", "num_decodes", "num_prefills", "max_blocks", "num_wanted")),
        *((name, POINTER) for name in ("cos", "sin", "slots", "queries", "decodes", "spans", "prefills")),
        *((name, POINTER) for name in ("seq_lens", "tables", "wanted")),
    ]


TAKES = [POINTER_TO(Shape), POINTER_TO(Step), POINTER_TO(Layer), INT, INT, INT, POINTER, POINTER, POINTER, POINTER]


@dataclass
class Prepared:
    """What stays the same from step to step, while the layers have the same caches."""

    run: Any
    """The compiled function, which takes these two."""
    shape: Shape
    layers: Array[Layer]
    backend: CPUBackend
    """Of the first layer; all of them read the same sequences."""

    @property
    def scratch(self) -> int:
        """Numbers of a token between the first operator and the last: twice x, and all heads with what attention makes
        of them, or gate, up and their product."""
        heads = (2 * self.shape.num_heads + 2 * self.shape.num_kv_heads) * self.shape.head_size
        return int(2 * self.shape.hidden + max(heads, 3 * self.shape.intermediate))


class CompiledDecoder(Decoder):
    attentions: list[Attention]
    hooks: list[Mapping[int, Any]]
    """Of the modules that are not called here."""
    bound: list[tuple[AttentionBackend | None, torch.Tensor | None]]
    """What the layers were bound to when `prepared` was made."""
    prepared: Prepared | None
    """None: these caches cannot be read here."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Where metadata.last_rows_only says so, a row that is not the last one of its sequence is zero."""
        for attention, (backend, cache) in zip(self.attentions, self.bound, strict=True):
            if attention.backend is not backend or attention.kv_cache is not cache:
                self.bound = [(attention.backend, attention.kv_cache) for attention in self.attentions]
                self.prepared = _prepare(self)
                break
        prepared = self.prepared
        if prepared is None or any(self.hooks):
            return super().forward(input_ids, positions, metadata)
        residual = self.embed_tokens(input_ids)
        cos, sin = self.rotary(positions)
        lists, tokens = prepared.backend.lists(metadata), len(residual)
        out = RESULTS.empty(residual.shape, residual.dtype)
        wanted = None
        if metadata.last_rows_only and metadata.max_query_len > 1:
            wanted = torch.tensor([end - 1 for start, end, _ in metadata.spans if end > start], dtype=torch.int64)
            out.zero_()
        step = Step(
            tokens=tokens, num_decodes=len(lists.decodes), num_prefills=len(lists.prefills),
            max_blocks=lists.block_tables.stride(0), num_wanted=0 if wanted is None else len(wanted),
            cos=cos.data_ptr(), sin=sin.data_ptr(), slots=metadata.slot_mapping.data_ptr(),
            queries=lists.queries.data_ptr(), decodes=lists.decodes.data_ptr(),
            spans=lists.spans.data_ptr(), prefills=lists.prefills.data_ptr(),
            seq_lens=lists.seq_lens.data_ptr(), tables=lists.block_tables.data_ptr(),
            wanted=None if wanted is None else wanted.data_ptr(),
        )  # fmt: skip
        scratch = RESULTS.empty((tokens, prepared.scratch), residual.dtype)
        norm, num_layers = cast(CompiledRMSNorm, self.norm).wide_weight, len(self.bound)
        together = max(1, ROWS_OF_CALL // max(tokens, 1))
        for first in range(0, num_layers, together):
            prepared.run(
                byref(prepared.shape), byref(step), prepared.layers, first, min(first + together, num_layers),
                num_layers, norm.data_ptr(), residual.data_ptr(), scratch.data_ptr(), out.data_ptr(),
            )  # fmt: skip
        return out


def _prepare(decoder: CompiledDecoder) -> Prepared | None:
    attention, flowing = decoder.attentions[0], decoder.norm.weight.dtype
    cache = attention.kv_cache
    if cache is None or (flowing, cache.dtype) not in DTYPES or attention.head_size % HEAD_SIZE_STEP:
        return None
    backends = [attention.backend for attention in decoder.attentions if isinstance(attention.backend, CPUBackend)]
    if len(backends) < len(decoder.attentions):
        return None
    layers = cast(list[DecoderLayer], list(decoder.layers))
    down = cast(CompiledLinear, layers[0].mlp.down_proj)
    shape = Shape(
        hidden=down.out_features, intermediate=down.in_features, num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads, head_size=attention.head_size, block_size=cache.shape[2],
        eps=decoder.norm.eps, scale=attention.scale,
    )  # fmt: skip
    weights = linear_name(down.packed).removeprefix("linear_")
    run = function(f"decoder_{DTYPE_NAMES[flowing]}_{weights}_{DTYPE_NAMES[cache.dtype]}", TAKES)
    return Prepared(run, shape, (Layer * len(layers))(*map(_pointers, layers)), backends[0])


def _pointers(layer: DecoderLayer) -> Layer:
    attention, mlp, cache = cast(CompiledSelfAttention, layer.self_attn), layer.mlp, layer.self_attn.attn.kv_cache
    norms = [cast(CompiledRMSNorm, norm) for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    assert cache is not None  # for the type checker
    found = Layer(
        input_norm=norms[0].wide_weight.data_ptr(), post_norm=norms[1].wide_weight.data_ptr(),
        keys=cache[0].data_ptr(), values=cache[1].data_ptr(),
    )  # fmt: skip
    if attention.norm_weights is not None:
        found.q_norm, found.k_norm = (weight.data_ptr() for weight in attention.norm_weights)
    products = {"qkv": attention.qkv_proj, "o": attention.o_proj, "gate_up": mlp.gate_up_proj, "down": mlp.down_proj}
    for name, product in products.items():
        linear = cast(CompiledLinear, product)
        setattr(found, f"{name}_weight", linear.packed.data_ptr())
        setattr(found, f"{name}_bias", None if linear.wide_bias is None else linear.wide_bias.data_ptr())
    return found


# What a layer has to be made of.
KINDS: dict[str, type[nn.Module]] = {
    "": DecoderLayer, "input_layernorm": CompiledRMSNorm, "post_attention_layernorm": CompiledRMSNorm,
    "self_attn": CompiledSelfAttention, "self_attn.attn": Attention, "self_attn.qkv_proj": CompiledLinear,
    "self_attn.o_proj": CompiledLinear, "mlp": CompiledMLP, "mlp.gate_up_proj": CompiledLinear,
    "mlp.down_proj": CompiledLinear,
}  # fmt: skip


def can_compile_decoder(model: DecoderForCausalLM) -> str | None:
    """Why a model's layers cannot run in one call; None where they can."""
    decoder = model.model
    parts = [("model", decoder, Decoder), ("model.norm", decoder.norm, CompiledRMSNorm)]
    for number, layer in enumerate(decoder.layers):
        parts += [(f"layer {number} {path}".strip(), layer.get_submodule(path), kind) for path, kind in KINDS.items()]
    dtypes: set[torch.dtype] = set()
    for name, module, kind in parts:
        if type(module) is not kind:
            return f"{name} is a {type(module).__name__} and not a {kind.__name__}"
        if isinstance(module, CompiledLinear):
            dtypes.add(module.packed.dtype)
            if len(dtypes) > 1:
                return f"{name} has a weight of another dtype than those before it"
        if isinstance(module, CompiledRMSNorm) and module.eps != decoder.norm.eps:
            return f"{name} has another eps than the last norm"
    return None


def compile_decoder(model: DecoderForCausalLM) -> None:
    """Let the layers of a model that is fused run in one call.

    Raises:
        ValueError: they cannot; the text says why.
    """
    if (reason := can_compile_decoder(model)) is not None:
        raise ValueError(f"model must have layers that can run in one call: {reason}")
    decoder = model.model
    decoder.__class__ = CompiledDecoder
    assert isinstance(decoder, CompiledDecoder)  # for the type checker
    decoder.attentions = model.attention_layers
    decoder.bound, decoder.prepared = [(None, None)] * len(decoder.attentions), None
    inside = [*decoder.layers.modules(), decoder.norm]
    decoder.hooks = [hooks for module in inside for hooks in (module._forward_hooks, module._forward_pre_hooks)]
