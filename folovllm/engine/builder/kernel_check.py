"""When an engine starts on a GPU, each of our kernels computes a small case there, and so do torch's operators.

A GPU, driver or Triton that was never tried may refuse a kernel, or compute something else. A warning then names it,
and torch takes its place, slower and right. The cases have the model's own sizes and dtypes, so the engine needs what
they compile. FOLOVLLM_CHECK_KERNELS=no leaves them out. A kernel that reads what is not there ends CUDA's context, and
the process with it.

vLLM: none
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from folovllm.attention.backend import Attention, AttentionExtras, FusedRope
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.config import EngineConfig
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine.builder.components import Components
from folovllm.engine.builder.kv_cache_dtype import FP8, INT8
from folovllm.layers.linear import PLAIN, Linear
from folovllm.layers.lora import LoRAWeights
from folovllm.layers.moe import route
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.ops import LayerOps, silu_mul
from folovllm.layers.quantization.cuda import plain_method
from folovllm.layers.quantization.linear import QuantizedLinears
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.lora.mapping import LoRAMapping
from folovllm.models.decoder import MLP, DecoderSpec
from folovllm.models.registry import ModelSpec
from folovllm.models.weights import default_dtype
from folovllm.sample.gumbel import GumbelParams, host_params
from folovllm.sample.row import SamplingRow
from folovllm.sampling_params import SamplingParams
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # |ours - torch's| / |torch's|
LENGTH = 150  # tokens of the sequence that all queries read: several tiles, the last of them partly filled
Case = Callable[[Components], Tensor]
MANY = 600  # programs; a batch of so many is not split (attention/splits.py)


def check_kernels(
    chosen: Components, config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, device: torch.device,
    group: GroupCoordinator | None = None,
) -> Components:  # fmt: skip
    """`chosen`, without the kernels that are wrong on `device`, or on that of another rank of `group`: all check, and
    all leave out the same, or they would not make the same sums.

    Raises:
        ValueError: a kernel is wrong, and torch does not compute what was asked for.
    """
    if device.type != "cuda" or os.environ.get("FOLOVLLM_CHECK_KERNELS") == "no":
        return chosen
    generator = torch.Generator().manual_seed(0)

    def make(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    linear = chosen.ops.linear
    linear = QuantizedLinears(linear.scheme, plain_method, PLAIN) if isinstance(linear, QuantizedLinears) else PLAIN
    backends = {torch.uint8: FP8["paged_torch"], torch.int8: INT8["paged_torch"]}
    backend = backends.get(chosen.cache_dtype, PagedTorchBackend)
    plain = replace(chosen, backend=backend, ops=LayerOps(linear), lora=LoRAWeights, draws=False, graphs=False)
    sizes = config.cache_config.block_size, chosen.cache_dtype
    if isinstance(spec, DecoderSpec):
        kinds = dict.fromkeys(map(AttentionExtras, spec.windows or [None]))
    else:
        kinds = dict.fromkeys(layer.extras for layer in spec.layers)
    cases, decode = _attention_cases(
        make, spec if isinstance(spec, DecoderSpec) else spec.layers[0], list(kinds), *sizes
    )
    if isinstance(spec, DecoderSpec):
        cases |= _layer_cases(make, spec, *sizes)
        in_eights = spec.hidden_size % 8 == spec.num_heads * spec.head_size % 8 == 0
        if getattr(chosen.ops, "few_rows", None) is not None and spec.experts is None and in_eights:
            cases["few_rows"] = _few_rows(make, spec)
        if config.lora_config.enable_lora:
            cases["lora"] = _adapters(make, spec, config.lora_config.max_lora_rank)
    around = [cases[name] for name in ("rms_norm", "silu_mul", "few_rows") if name in cases]
    cases |= {"graphs": partial(_replay, decode, around), "draw": partial(_draw, make, spec.vocab_size)}
    for kernel, case in cases.items():
        why = _find_fault(case, chosen, plain, TOLERANCE[dtype])
        if all([why is None] if group is None else group.fewest([why is None])):
            continue
        why, asked = why or "is no good on another rank", None
        if kernel == "graphs":
            chosen = replace(chosen, graphs=False)
            logger.warning("steps are launched kernel by kernel, which is slower: a CUDA graph's replay %s", why)
            continue
        why = f"the kernel {kernel!r} {why}"
        if kernel == "draw":
            without = replace(chosen, draws=False)
        elif kernel == "lora":  # torch asks the host which rows have which adapter
            without = replace(chosen, lora=LoRAWeights, graphs=False)
        elif hasattr(chosen.ops, kernel):
            # Without their kernel, how many rows each expert has must be known on the host.
            graphs = chosen.graphs and kernel != "experts"
            torchs: dict[str, Any] = {kernel: getattr(plain.ops, kernel, None)}
            ops = replace(chosen.ops, **torchs)
            without = replace(chosen, ops=ops, graphs=graphs)
        else:
            graphs = chosen.graphs and plain.backend.supports_cuda_graphs
            without = replace(chosen, backend=plain.backend, graphs=graphs)
            asked = "attention_backend" if config.model_config.attention_backend == chosen.backend.name else None
        if asked := "batch_invariant" if config.model_config.batch_invariant else asked:
            raise ValueError(f"{asked} cannot be what was asked for on {device}: {why}; leave {asked} out")
        chosen = without
        wider = kernel == "linear" and isinstance(linear, QuantizedLinears)
        also = f", and quantised weights take {8 * dtype.itemsize} bits" if wider else ""
        logger.warning("torch takes the place of a kernel, which is slower%s: %s", also, why)
    return chosen


def _find_fault(case: Case, ours: Components, plain: Components, most: float) -> str | None:
    try:
        got, want = case(ours).double(), case(plain).double()
        off = float((got - want).norm() / want.norm())
    except Exception as error:  # compilers and drivers raise what they like
        return f"fails with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None if off <= most else f"is off by {off:.1e} of the right result"  # NaN is, too


def _attention_cases(
    make: Callable[..., Tensor],
    spec: DecoderSpec | Attention,
    kinds: list[AttentionExtras],
    block_size: int,
    cache_dtype: torch.dtype,
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
        metadata = AttentionMetadata(
            query_start_loc=ints(range(0, new * count + 1, new)),
            seq_lens=ints([max(LENGTH - 70 * (i % 3), new) for i in range(count)]),
            slot_mapping=slots,
            block_tables=ints([table.tolist()] * count),
            max_query_len=new,
            max_seq_len=LENGTH,
            decode_order=ints(range(count)) if new == 1 else None,
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


def _layer_cases(
    make: Callable[..., Tensor], spec: DecoderSpec, block_size: int, cache_dtype: torch.dtype
) -> dict[str, Case]:
    heads, kv_heads, size, eps = spec.num_heads, spec.num_kv_heads, spec.head_size, spec.rms_norm_eps
    x, residual, rows = make(43, spec.hidden_size).split([3, 3, 37])
    qkv, gate_up, layer = make(3, heads + 2 * kv_heads, size), make(3, 2 * spec.intermediate_size), Linear(1, 1)
    rotary = RotaryEmbedding(size, 3, spec.rope).to(x.device)(torch.arange(3, device=x.device))
    norm, layer.weight = QKNorm(heads, kv_heads, size, eps), nn.Parameter(rows, requires_grad=False)
    norm.weight = nn.Parameter(make(2, size), requires_grad=False)
    weight = make(spec.hidden_size, spec.hidden_size)
    qk_norm = norm if spec.qk_norm else None

    def rotate(chosen: Components) -> Tensor:
        """q, k and v, and a cache that has k and v, where it keeps them as they are."""
        backend, heads_of_three = chosen.backend(heads, kv_heads, size, size**-0.5), qkv.clone()
        if not backend.stores_as_is:
            return torch.cat(chosen.ops.norm_rotary(heads_of_three, qk_norm, rotary, heads, kv_heads), 1)
        cache = torch.zeros(backend.kv_cache_shape(4, block_size), dtype=cache_dtype, device=x.device)
        slots = torch.arange(3, 0, -1, device=x.device) * block_size
        computes: Any = chosen.ops.norm_rotary
        if computes is LayerOps().norm_rotary:
            q, k, v = computes(heads_of_three, qk_norm, rotary, heads, kv_heads)
            backend.write(k, v, cache, slots)
        else:  # the kernel, which stores them itself
            q, k, v = computes(heads_of_three, qk_norm, rotary, heads, kv_heads, cache, slots)
        return torch.cat([q.flatten(), k.flatten(), v.flatten(), cache.flatten()])

    def decode(chosen: Components) -> Tensor:
        """Second tokens of three sequences, whose first keys are zeros, and what is in the cache then."""
        heads_of_three, backend = qkv.clone(), cast(Any, chosen.backend(heads, kv_heads, size, size**-0.5))
        tables = torch.arange(1, 7, dtype=torch.int32, device=x.device).view(3, 2)
        slots = tables[:, 1 // block_size].long() * block_size + 1 % block_size
        starts = torch.arange(4, dtype=torch.int32, device=x.device)
        metadata = AttentionMetadata(starts, torch.full_like(starts[1:], 2), slots, tables, 1, 2)
        cache = torch.zeros(backend.kv_cache_shape(7, block_size), dtype=cache_dtype, device=x.device)
        if getattr(chosen.ops, "fuses_decode", None) and backend.stores_as_is and backend.supports_fused_decode:
            fused = FusedRope(norm.weight if spec.qk_norm else None, eps, rotary[0], rotary[1], slots)
            out = backend.fused_forward(heads_of_three[:, :heads], cache, metadata, fused)
        else:
            q, k, v = LayerOps().norm_rotary(heads_of_three, qk_norm, rotary, heads, kv_heads)
            backend.write(k, v, cache, slots)
            out = backend.forward(q, cache, metadata)
        return torch.cat([out.flatten(), cache.flatten()])

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
        if isinstance(method, QuantizedLinears):
            chosen.ops.process_weights_after_loading(experts)
        logits = torch.arange(40 * few, device=x.device).view(40, few) % (few + 3) * 1.0
        return experts(rows.repeat(2, 1)[:40], route(logits, min(2, few), renormalize=True))

    cases: dict[str, Case] = {
        "linear": multiply,
        "rms_norm": lambda chosen: torch.cat(
            [chosen.ops.rms_norm(x, None, rows[0], eps)[0], *chosen.ops.rms_norm(x, residual.clone(), rows[0], eps)]
        ),
        "norm_rotary": rotate,
        "silu_mul": lambda chosen: chosen.ops.silu_mul(gate_up),
        "fuses_decode": decode,
    }
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


def _few_rows(make: Callable[..., Tensor], spec: DecoderSpec) -> Case:
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


def _adapters(make: Callable[..., Tensor], spec: DecoderSpec, rank: int) -> Case:
    """Rows of two adapters and of none, behind a product of zeros."""
    x, pairs = make(37, spec.hidden_size), [(make(rank, spec.hidden_size), make(spec.hidden_size, rank))] * 2

    def add(chosen: Components) -> Tensor:
        weights = chosen.lora(2, rank, *(spec.hidden_size,) * 2, x.dtype, x.device)
        for slot, pair in enumerate(pairs):
            weights.put(slot, *pair)
        out = torch.zeros_like(x)
        weights.add(x, LoRAMapping(torch.arange(len(x), device=x.device) % 3 - 1), out)
        return out

    return add


def _draw(make: Callable[..., Tensor], vocab_size: int, chosen: Components) -> Tensor:
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
