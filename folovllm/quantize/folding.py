"""Scale a product's inputs down and its columns up: the function stays, and what has to be rounded is another.

    y = W x = (W s) (x / s)        a factor s for each input; x / s comes for nothing, from what makes x

    qkv      ◀─ input_layernorm's weight            gate·up  ◀─ post_attention_layernorm's weight
    o        ◀─ rows of v: attention only mixes     down     ◀─ rows of up: silu(gate) multiplies them
                tokens, never channels

AWQ (Lin et al., 2023, arXiv:2306.00978) makes columns with large inputs larger, so that their rounding errors are
smaller beside them. How much larger is searched. SmoothQuant (Xiao et al., 2022, arXiv:2211.10438) makes outliers
among the inputs smaller, where these are to be rounded to 8 bits, too.

vLLM: none; llm-compressor's modifiers awq and smoothquant
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from folovllm.layers.linear import Linear
from folovllm.layers.norm import RMSNorm
from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.models.decoder import MLP, DecoderLayer
from folovllm.quantize.calibration import Statistics
from folovllm.quantize.rounding import Grid, output_error

STEPS = 20
SMALLEST = 1e-5
"""Of a channel: what never is more than zero has a scale as well."""


class Norm:
    """Scales can go into a norm's weight, which is stored as `stored`."""

    def __init__(self, norm: RMSNorm, stored: torch.dtype) -> None:
        self.norm, self.stored = norm, stored

    def shared(self, channels: torch.Tensor) -> torch.Tensor:
        """`channels` [in], the same number wherever one factor has to do."""
        return channels

    def divide(self, scales: torch.Tensor) -> torch.Tensor:
        """Divide what comes out. The scales that it came to: the weight is a number of its dtype before and after."""
        weight = self.norm.weight
        divided = (weight / scales).to(self.stored).float()
        usable = (divided != 0) & divided.isfinite()
        reached = torch.where(usable, weight / divided, 1.0)
        weight.copy_(torch.where(usable, divided, weight))
        return reached


class Rows:
    """Scales can go into the rows of `part` of a product. With grouped queries, `repeats` heads read each row."""

    def __init__(self, product: Linear, part: str, heads: int, repeats: int) -> None:
        names, sizes = list(product.parts), list(product.parts.values())
        start = sum(sizes[: names.index(part)])
        self.product, self.rows = product, slice(start, start + product.parts[part])
        self.shape = (heads, repeats, product.parts[part] // heads)

    def shared(self, channels: torch.Tensor) -> torch.Tensor:
        return channels.view(self.shape).mean(1, keepdim=True).expand(self.shape).reshape(-1)

    def divide(self, scales: torch.Tensor) -> torch.Tensor:
        of_rows = scales.view(self.shape)[:, 0].flatten()
        self.product.weight[self.rows] /= of_rows[:, None]
        if self.product.bias is not None:
            self.product.bias[self.rows] /= of_rows
        return scales


Source = Norm | Rows


def sources(layer: DecoderLayer, name: str, stored: dict[str, torch.dtype]) -> Iterator[tuple[Linear, Source]]:
    """Each product of the layer `name`, and what makes its inputs. `stored`: the dtypes of the checkpoint's tensors."""
    attention, norm = layer.self_attn, layer.post_attention_layernorm
    repeats = attention.num_heads // attention.num_kv_heads
    yield attention.qkv_proj, Norm(layer.input_layernorm, stored[f"{name}.input_layernorm.weight"])
    yield attention.o_proj, Rows(attention.qkv_proj, "v_proj", attention.num_kv_heads, repeats)
    for mlp in layer.mlp.modules():  # itself, or experts: these share the norm, and Recipe.fitted leaves them alone
        if isinstance(mlp, MLP):
            yield mlp.gate_up_proj, Norm(norm, stored[f"{name}.post_attention_layernorm.weight"])
            yield mlp.down_proj, Rows(mlp.gate_up_proj, "up_proj", 1, 1)


def fold(product: Linear, source: Source, statistics: Statistics, scales: torch.Tensor) -> None:
    """Divide the product's inputs by `scales` [in] at their source, and multiply its columns by them."""
    reached = source.divide(scales)
    product.weight.mul_(reached)
    statistics.divide(reached)


def awq_scales(
    weight: torch.Tensor, statistics: Statistics, source: Source, scheme: QuantScheme, stored: torch.dtype
) -> torch.Tensor:
    """Powers of the inputs' mean size, [in]: the power is the one with the least error at the outputs."""
    size = source.shared(statistics.mean_size).clamp(min=SMALLEST)
    best, least = torch.ones_like(size), torch.inf
    for step in range(STEPS):
        scales = size ** (step / STEPS)
        scales = scales / (scales.max() * scales.min()).sqrt()
        rounded = Grid.of(weight * scales, scheme, stored).round(weight * scales).dequantize() / scales
        error = output_error(rounded - weight, statistics.hessian).sum().item()
        if error < least:
            best, least = scales, error
    return best


def smoothquant_scales(weight: torch.Tensor, statistics: Statistics, source: Source, alpha: float) -> torch.Tensor:
    """The inputs' largest size to the power alpha over the weights' to the power 1 - alpha, [in]."""
    of_inputs = statistics.largest.clamp(min=SMALLEST) ** alpha
    of_weights = weight.abs().amax(0).clamp(min=SMALLEST) ** (1 - alpha)
    return source.shared(of_inputs / of_weights)
