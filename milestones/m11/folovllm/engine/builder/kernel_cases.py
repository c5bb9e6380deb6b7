"""Small cases for each of our kernels, of a model's own sizes and dtypes: what an engine computes at its start, by the
kernels and by torch (kernel_check.py).

A case computes with the components that it is given, and returns all that the kernel has made of it.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from folovllm.attention.backend import Attention, AttentionExtras
from folovllm.attention.metadata import AttentionMetadata
from folovllm.config import EngineConfig
from folovllm.engine.builder.components import Components
from folovllm.layers.linear import PLAIN, Linear
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.ops import LayerOps, silu_mul
from folovllm.layers.quantization.linear import QuantizedLinears
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.models.decoder import MLP, DecoderSpec
from folovllm.models.registry import ModelSpec
from folovllm.models.weights import default_dtype
from folovllm.sample.gumbel import GumbelParams, host_params
from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams

LENGTH = 150  # tokens of the sequence that all queries read: several tiles, the last of them partly filled
MANY = 600  # programs; a batch of so many is not split (attention/splits.py)
Make = Callable[..., Tensor]
"""Random numbers of these sizes."""
Case = Callable[[Components], Tensor]


def make_cases(make: Make, chosen: Components, config: EngineConfig, spec: ModelSpec) -> dict[str, Case]:
    """By the name of what they check: a field of LayerOps, "graphs", "draw", or one of attention."""
    sizes = config.cache_config.block_size, chosen.cache_dtype
    if isinstance(spec, DecoderSpec):
        kinds = dict.fromkeys(map(AttentionExtras, spec.windows or [None]))
        cases, decode = _attention_cases(make, spec, list(kinds), *sizes)
        cases |= _product_cases(make, spec) | _head_cases(make, spec, *sizes)
        in_eights = spec.hidden_size % 8 == spec.num_heads * spec.head_size % 8 == 0
        if getattr(chosen.ops, "few_rows", None) is not None and spec.experts is None and in_eights:
            cases["few_rows"] = _few_rows(make, spec)
    else:
        kinds = dict.fromkeys(layer.extras for layer in spec.layers)
        cases, decode = _attention_cases(make, spec.layers[0], list(kinds), *sizes)
    around = [cases[name] for name in ("rms_norm", "silu_mul", "few_rows") if name in cases]
    return cases | {"graphs": partial(_replay, decode, around), "draw": partial(_draw, make, spec.vocab_size)}


def _attention_cases(
    make: Make, spec: DecoderSpec | Attention, kinds: list[AttentionExtras], block_size: int, cache_dtype: torch.dtype
) -> tuple[dict[str, Case], Callable[[Components], Callable[[], Tensor]]]:
    """By the kernel's name; and a decode in splits, prepared."""
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_size
    q, k, v = make(max(MANY, 2 * LENGTH), heads + 2 * kv_heads, size).split([heads, kv_heads, kv_heads], dim=1)
    ints = partial(torch.tensor, dtype=torch.int32, device=q.device)
    table, position = torch.arange(-(-LENGTH // block_size), 0, -1), torch.arange(LENGTH)
    slots = (table[position // block_size] * block_size + position % block_size).to(q.device)
    kinds = [each if each.sinks is None else replace(each, sinks=make(heads)) for each in kinds]  # theirs are on meta

    def store(chosen: Components) -> Tensor:
        backend = chosen.backend(heads, kv_heads, size, size**-0.5)
        shape = backend.kv_cache_shape(len(table) + 1, block_size)
        cache = torch.zeros(shape, dtype=cache_dtype, device=q.device)
        backend.write(k[:LENGTH], v[:LENGTH], cache, slots)
        return cache

    def attention(new: int, count: int, chosen: Components) -> Callable[[], Tensor]:
        """Of `count` times `new` queries, each at the end of another part of the sequence."""
        starts, lens = ints(range(0, new * count + 1, new)), [max(LENGTH - 70 * (i % 3), new) for i in range(count)]
        order = ints(range(count)) if new == 1 else None
        metadata = AttentionMetadata(
            starts, ints(lens), slots, ints([table.tolist()] * count), new, LENGTH, decode_order=order
        )
        backends = [chosen.backend(heads, kv_heads, size, size**-0.5, each) for each in kinds]
        cache = store(chosen)
        return lambda: torch.cat([each.forward(q[: new * count], cache, metadata) for each in backends])

    def attend(new: int, count: int, chosen: Components) -> Tensor:
        return attention(new, count, chosen)()

    middling = max(2, 64 // (heads // kv_heads))  # rows of a tile, see choose_tiles()
    cases = {f"prefill of {new} tokens": partial(attend, new, 2) for new in (middling, LENGTH)}
    cases |= {"decode in splits": partial(attend, 1, 3), "decode": partial(attend, 1, -(-MANY // kv_heads))}
    cases |= {"decode of drafts": partial(attend, 2, 2)}
    return {"store_kv": store, **cases}, partial(attention, 1, 3)


def _head_cases(make: Make, spec: DecoderSpec, block_size: int, cache_dtype: torch.dtype) -> dict[str, Case]:
    heads, kv_heads, size, eps = spec.num_heads, spec.num_kv_heads, spec.head_size, spec.rms_norm_eps
    qkv, norm = make(3, (heads + 2 * kv_heads) * size), QKNorm(heads, kv_heads, size, eps)
    rotary = RotaryEmbedding(size, 60, spec.rope).to(qkv.device)(torch.arange(0, 60, 20, device=qkv.device))
    norm.weight, (keys, values) = nn.Parameter(make(2, size), requires_grad=False), make(2, 3, kv_heads, size)
    attn = Attention(heads, kv_heads, size)
    layer = SimpleNamespace(
        attn=attn, num_heads=heads, num_kv_heads=kv_heads, head_size=size, qk_norm=norm if spec.qk_norm else None
    )

    def attend(longest: int, chosen: Components) -> Tensor:
        """Of second tokens of three sequences. longest: query, or so it is said, so that a prompt's kernels compute
        them, which read K and V from the cache; else that is returned, too, where it has them as they are."""
        backend, product = attn.make_backend(chosen.backend), qkv.clone()
        cache = torch.zeros(backend.kv_cache_shape(7, block_size), dtype=cache_dtype, device=qkv.device)
        attn.bind(backend, cache)
        tables = torch.arange(1, 7, dtype=torch.int32, device=qkv.device).view(3, 2)
        slots = tables[:, 1 // block_size].long() * block_size + 1 % block_size
        backend.write(keys, values, cache, tables[:, 0].long() * block_size)
        starts = torch.arange(4, dtype=torch.int32, device=qkv.device)
        metadata = AttentionMetadata(starts, torch.full_like(starts[1:], 2), slots, tables, longest, 2)
        out = chosen.ops.attend(layer, product, rotary, metadata)
        return torch.cat([out.flatten(), *([cache.flatten()] if backend.stores_as_is and longest == 1 else [])])

    return {"norm_rotary": partial(attend, 2), "fuses_decode": partial(attend, 1)}


def _product_cases(make: Make, spec: DecoderSpec) -> dict[str, Case]:
    x, residual, rows = make(43, spec.hidden_size).split([3, 3, 37])
    gate_up, weight, layer = make(3, 2 * spec.intermediate_size), make(spec.hidden_size, spec.hidden_size), Linear(1, 1)
    layer.weight = nn.Parameter(rows, requires_grad=False)

    def multiply(chosen: Components) -> Tensor:
        """As it is, and by a weight that is rounded as each kind of layer's is, in all ways for few and many rows."""
        method = chosen.ops.linear
        if not isinstance(method, QuantizedLinears):
            return method.apply(layer, x)
        outs, schemes = [method.plain.apply(layer, x)], (method.scheme.layers or {"": method.scheme}).values()
        for scheme in {(each.bits, each.group_size, each.symmetric): each for each in schemes}.values():
            made = method.method(replace(scheme, format="plain"), "a small weight")
            with x.device, default_dtype(x.dtype):
                rounded = Linear(spec.hidden_size, spec.hidden_size, method=made)
            rounded.weight = nn.Parameter(weight.clone(), requires_grad=False)
            made.process_weights_after_loading(rounded)
            outs += [rounded(x.repeat(times, 1)) for times in (1, 8, 13, 86)]
        return torch.cat([out.flatten() for out in outs])

    def mix(chosen: Components) -> Tensor:
        """40 rows, few and many of them of an expert."""
        assert spec.experts is not None
        one, few = replace(spec, intermediate_size=spec.experts.size), min(4, spec.experts.num_experts)
        name, linear = f"model.layers.{min(spec.experts.layers, default=0)}.mlp.experts", PLAIN
        if isinstance(method := chosen.ops.linear, QuantizedLinears) and (
            scheme := method.scheme.of_layer(f"{name}.0.up_proj")
        ):
            scheme = replace(scheme, format="plain", activation_bits=None, ignore=(), layers=None)
            linear = QuantizedLinears(scheme, method.method, method.plain)
        with x.device, default_dtype(x.dtype):
            experts = chosen.ops.experts(few, lambda number: MLP(one, LayerOps(linear), f"{name}.{number}"))
        for weight, numbers in zip(experts.parameters(), middles, strict=False):
            weight.copy_(numbers.view(weight.shape))
        LayerOps.process_weights_after_loading(chosen.ops, experts)  # others want a whole model
        if stack := getattr(experts, "stack", None):
            stack()
        logits = torch.arange(40 * few, device=x.device).view(40, few) % (few + 3) * 1.0
        return experts(rows.repeat(2, 1)[:40], experts.route(logits, min(2, few), renormalize=True))

    def normalise(chosen: Components) -> Tensor:
        norm, eps = chosen.ops.rms_norm, spec.rms_norm_eps
        return torch.cat([norm(x, None, rows[0], eps)[0], *norm(x, residual.clone(), rows[0], eps)])

    cases = {"linear": multiply, "rms_norm": normalise, "silu_mul": lambda chosen: chosen.ops.silu_mul(gate_up)}
    if spec.experts is not None:
        middles = [make(spec.experts.size * spec.hidden_size * times) for _ in range(4) for times in (2, 1)]
        cases["experts"] = mix
    return cases


def _replay(decode: Callable[[Components], Callable[[], Tensor]], others: list[Case], chosen: Components) -> Tensor:
    """A decode in splits and `others`: launched, or as a graph's second replay finds what the first has left."""
    attend = decode(chosen)

    def forward() -> Tensor:
        return torch.cat([attend().flatten(), *(case(chosen).flatten() for case in others)])

    out = forward()
    if chosen.graphs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out.copy_(forward())
        for _ in range(2):
            out.fill_(torch.nan)
            graph.replay()
    return out


def _few_rows(make: Make, spec: DecoderSpec) -> Case:
    """Each tile's rows but for some, with all that is around a product in a layer."""
    hidden, heads, middle = spec.hidden_size, spec.num_heads * spec.head_size, min(spec.intermediate_size, 3072)
    every_x, attended = make(64, hidden), make(64, heads)
    gate_up, o = make(2 * middle, hidden), make(hidden, heads)
    norm = RMSNorm(hidden, spec.rms_norm_eps)
    norm.weight = nn.Parameter(make(hidden), requires_grad=False)

    def multiply(chosen: Components) -> Tensor:
        kernel, outs = getattr(chosen.ops, "few_rows", None), []
        for count in (3, 11, 27, 59):  # of tiles of 8, 16, 32 and 64
            x, rows = every_x[:count], attended[:count]
            if kernel is None:
                gated, added = silu_mul(F.linear(norm(x)[0], gate_up)), x + F.linear(rows, o)
            else:
                gated, added = kernel(x, gate_up, norm=norm, gated=True), kernel(rows, o, add_to=x.clone())
            outs += [gated.flatten().float() / hidden, added.flatten().float() / heads**0.5]  # of one size
        return torch.cat(outs)

    return multiply


def _draw(make: Make, vocab_size: int, chosen: Components) -> Tensor:
    """Draws of which it is known how they end: 1 for each that ends so."""
    logits = make(4, vocab_size)
    if not chosen.draws:
        return torch.ones(4, device=logits.device)
    logits[:2, -1], logits[2] = 1000.0, 0.0
    wanted = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(), SamplingParams(top_k=2, top_p=0.999)]
    rows = [SamplingRow(params, [], [], frozenset(), None) for params in wanted]
    params = GumbelParams(torch.from_numpy(host_params(rows, range(4), vocab_size)).to(logits.device))
    places, kept = torch.arange(4, device=logits.device), torch.zeros_like(logits, dtype=torch.int8)
    first, second = params.draw(logits, places), params.draw(logits.float(), places + 4, kept=kept)
    likeliest, filtered = logits[3].topk(2).values.sort().values, logits[3][kept[3] != 0].sort().values
    sure = [(first[row] == vocab_size - 1) & (second[row] == vocab_size - 1) for row in range(2)]
    return torch.stack([*sure, first[2] != second[2], torch.tensor(torch.equal(likeliest, filtered)).to(first.device)])
