"""Linear layers with quantised weights: loaded as the checkpoint has them, then brought into the form that is computed
with.

    checkpoint ─▶ stored tensors of each part ─ formats.py ─▶ Codes ─ stacked ─▶ keep(): what apply() reads
    a checkpoint that is not quantised ─▶ its weight ─ round_to_nearest() ─▶ Codes ─▶ the same

Here, in plain torch, what is kept is the weight that the codes mean: the reference, and the way where no kernel of ours
can run. It saves no memory and no time. compiled.py and cuda.py keep the codes.

vLLM: model_executor/layers/linear.py (LinearMethodBase), model_executor/layers/quantization/base_config.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from folovllm.errors import ModelLoadError
from folovllm.layers.compiled_ops import PackedMethod
from folovllm.layers.linear import Linear, LinearMethod
from folovllm.layers.quantization.codes import Codes, round_to_e4m3, round_to_nearest, stack
from folovllm.layers.quantization.formats import FORMATS
from folovllm.model_loader.gguf import BLOCKS
from folovllm.model_loader.quant_scheme import QuantScheme


def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row of x [num_tokens, in] in 8 bits: (codes in [-127, 127], as floats; scales [num_tokens, 1]), float32."""
    x = x.float()
    scale = x.abs().amax(1, keepdim=True) / 127
    return (x / scale.where(scale > 0, 1.0)).round(), scale


class QuantizedLinear(LinearMethod):
    """One layer's. `name` is the layer's in error messages."""

    def __init__(self, scheme: QuantScheme, name: str) -> None:
        self.scheme, self.name = scheme, name

    def columns_together(self, in_features: int) -> int:
        """A rank's codes are those of the whole row: its part is whole groups, and whole words of packed codes."""
        if self.scheme.format == "plain":
            self.scheme = replace(self.scheme, group_size=self._group_size(in_features))
        blocks = (BLOCKS[kind].columns for kind in self.scheme.blocks)
        return math.lcm(8, *blocks, 1 if self.scheme.group_size == -1 else self.scheme.group_size)

    def create_weights(self, layer: Linear, *, bias: bool) -> None:
        super().create_weights(layer, bias=bias)
        self.dtype = torch.get_default_dtype()
        if self.scheme.format == "plain":
            return
        layer.register_parameter("weight", None)
        for part, outs in layer.parts.items():
            for kind, (shape, dtype) in (
                FORMATS[self.scheme.format].tensors(outs, layer.in_features, self._of_part(layer, part)).items()
            ):
                empty = torch.empty(shape, dtype=dtype or torch.get_default_dtype())
                layer.register_parameter(_parameter(part, kind), nn.Parameter(empty, requires_grad=False))

    def checkpoint_slots(self, layer: Linear) -> Iterator[tuple[str, torch.Tensor]]:
        yield from super().checkpoint_slots(layer)
        if self.scheme.format != "plain":
            for part in layer.parts:
                for kind, tensor in self._stored(layer, part).items():
                    yield (f"{part}.{kind}" if part else kind), tensor

    def process_weights_after_loading(self, layer: Linear) -> None:
        self.keep(layer, self._codes(layer))

    def keep(self, layer: Linear, codes: Codes) -> None:
        """Keep the layer's weight for apply(); its former tensors are gone."""
        layer.weight = nn.Parameter(codes.dequantize().to(self.dtype), requires_grad=False)

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.activation_bits is not None:
            codes, scale = round_rows(x)
            x = (codes * scale).to(x.dtype)
        return F.linear(x, layer.weight, layer.bias)

    def _stored(self, layer: Linear, part: str) -> dict[str, torch.Tensor]:
        scheme = self._of_part(layer, part)
        kinds = FORMATS[scheme.format].tensors(layer.parts[part], layer.in_features, scheme)
        return {kind: layer.get_parameter(_parameter(part, kind)) for kind in kinds}

    def _of_part(self, layer: Linear, part: str) -> QuantScheme:
        """That of its tensors: in a GGUF file, each part has blocks of its own."""
        blocks = dict(zip(layer.parts, self.scheme.blocks, strict=False))
        return replace(self.scheme, blocks=(blocks[part],)) if blocks else self.scheme

    def _group_size(self, in_features: int) -> int:
        size = self.scheme.group_size
        while size != -1 and in_features % size:
            size = size // 2 if size > 8 else -1
        return size

    def _codes(self, layer: Linear) -> Codes:
        if self.scheme.format == "plain":
            weight, size = layer.weight.detach(), self._group_size(layer.in_features)
            if self.scheme.type == "float":
                numbers, scale = round_to_e4m3(weight.unflatten(1, (-1, weight.shape[1] if size == -1 else size)))
                return Codes(numbers.flatten(1), scale.flatten(1), None)
            return round_to_nearest(weight, bits=self.scheme.bits, group_size=size, symmetric=self.scheme.symmetric)
        parts = []
        for part in layer.parts:
            stored = self._stored(layer, part)
            name = f"{self.name.rpartition('.')[0]}.{part}" if part else self.name
            parts.append(FORMATS[self.scheme.format].read(stored, self._of_part(layer, part), name))
            for kind in stored:
                delattr(layer, _parameter(part, kind))
        return stack(parts)


class DequantizedLinear(QuantizedLinear):
    """Where no kernel of ours reads the codes: multiplies by the weight that they mean, as `plain` does."""

    def __init__(self, scheme: QuantScheme, name: str, *, plain: LinearMethod) -> None:
        super().__init__(scheme, name)
        self.plain = plain

    def keep(self, layer: Linear, codes: Codes) -> None:
        super().keep(layer, codes)
        self.plain.process_weights_after_loading(layer)

    def kernel(self, layer: Linear) -> str:
        return cast(PackedMethod, self.plain).kernel(layer)

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return self.plain.apply(layer, x)


def _parameter(part: str, kind: str) -> str:
    return f"{part}_{kind}" if part else f"stored_{kind}"


class QuantizedLinears(LinearMethod):
    """For a model's linear layers: `method` for those that its scheme quantises, and `plain` for the others.

    vLLM: QuantizationConfig.get_quant_method
    """

    def __init__(
        self, scheme: QuantScheme, method: Callable[[QuantScheme, str], QuantizedLinear], plain: LinearMethod
    ) -> None:
        self.scheme, self.method, self.plain = scheme, method, plain

    def for_layer(self, parent: str, parts: Sequence[str]) -> LinearMethod:
        names = [f"{parent}.{part}" if parent else part for part in parts]
        schemes = [self.scheme.of_layer(name) for name in names]
        if schemes[0] is None and not any(schemes):
            return self.plain
        if schemes[0] is not None and all(schemes):
            return self.method(schemes[0], names[0])
        plain, other = names[schemes.index(None)], next(n for n, found in zip(names, schemes, strict=True) if found)
        raise ModelLoadError(f"{plain} is not quantised, and {other} is: they are one product here, and must be alike")
