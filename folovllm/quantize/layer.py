"""One layer: take statistics of what its products read, fold, round.

vLLM: none; llm-compressor's modifiers
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from folovllm.layers.linear import Linear
from folovllm.layers.moe import block_of
from folovllm.layers.quantization.codes import Codes
from folovllm.models.decoder import DecoderLayer
from folovllm.quantize.calibration import ObservedLinear, Statistics
from folovllm.quantize.folding import awq_scales, fold, smoothquant_scales, sources
from folovllm.quantize.gptq import gptq
from folovllm.quantize.recipe import Recipe
from folovllm.quantize.rounding import Grid, output_error

FEWEST = 2
"""Tokens for each input of an expert, from which on GPTQ errs less than rounding to the nearest. From fewer it learns
what the text's few inputs have in common by chance, and moves weights for that."""


@dataclass
class Rounded:
    """A weight of the checkpoint, in codes."""

    name: str
    """"model.layers.0.self_attn.q_proj\""""
    codes: Codes
    stored: torch.dtype
    """Of the scales, and of the weight before."""
    error: float
    tokens: int
    method: str
    """See report.LayerError."""


def quantize_layer(
    layer: DecoderLayer, name: str, recipe: Recipe, stored: dict[str, torch.dtype], calibrate: Callable[[], None]
) -> Iterator[Rounded]:
    """The layer's weights, one after the other; `layer` itself computes with them from then on.

    Args:
        name: the layer's, "model.layers.0".
        stored: the dtypes of the checkpoint's tensors.
        calibrate: sends the calibration text through the layer.

    Raises:
        ValueError: the text's activations are not finite, by the product's name.
    """
    products = list(sources(layer, name, stored))
    methods = [_method(product) for product, _ in products]
    for (product, _), method in zip(products, methods, strict=True):
        method.statistics = Statistics(product.in_features, product.weight.device)
    calibrate()
    statistics = [method.take_statistics() for method in methods]
    for (product, source), method, seen in zip(products, methods, statistics, strict=True):
        weight, dtype = product.weight, stored[f"{method.names[0]}.weight"]
        if recipe.method == "awq":
            fold(product, source, seen, awq_scales(weight, seen, source, recipe.scheme, dtype))
        elif recipe.smoothquant is not None:
            fold(product, source, seen, smoothquant_scales(weight, seen, source, recipe.smoothquant))
    # All is folded first: a fold changes rows of another product, too.
    for (product, _), method, seen in zip(products, methods, statistics, strict=True):
        yield from _round(product, method, recipe, seen, stored[f"{method.names[0]}.weight"])


def _method(product: Linear) -> ObservedLinear:
    assert isinstance(product.method, ObservedLinear)
    return product.method


def _round(
    product: Linear, method: ObservedLinear, recipe: Recipe, seen: Statistics, stored: torch.dtype
) -> Iterator[Rounded]:
    """Those that are stacked share their inputs, and rows know nothing of each other: one rounding does for all."""
    weight, hessian = product.weight, seen.hessian
    grid = Grid.of(weight, recipe.scheme, stored)
    is_rare = block_of(method.names[0]) == "experts" and seen.count < FEWEST * product.in_features
    how = "rtn" if is_rare else recipe.method
    codes = gptq(weight, hessian, grid) if how == "gptq" else grid.round(weight)
    meant = codes.dequantize()
    change, size = output_error(meant - weight, hessian), output_error(weight, hessian)
    weight.copy_(meant)
    method.is_quantized = True
    start = 0
    for name, outs in zip(method.names, product.parts.values(), strict=True):
        rows = slice(start, start + outs)
        start += outs
        zero = None if codes.zero is None else codes.zero[rows]
        error = (change[rows].sum() / size[rows].sum().clamp(min=1e-30)).clamp(min=0).sqrt().item()
        yield Rounded(name, Codes(codes.values[rows], codes.scale[rows], zero), stored, error, seen.count, how)
