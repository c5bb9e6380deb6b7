"""What is asked for, checked, and how config.json says it.

vLLM: none; llm-compressor's recipes
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.models.decoder import DecoderSpec
from folovllm.utils.checks import check_choice, check_float, check_int, wrong

Method = Literal["rtn", "gptq", "awq"]
METHODS: tuple[str, ...] = get_args(Method)


@dataclass(frozen=True)
class Recipe:
    method: str
    scheme: QuantScheme
    smoothquant: float | None = None
    """How much of a channel's size moves from the activations into the weights: 0 none, 1 all. None: not done."""
    any_groups: bool = False  # of which size, was not said: fitted() does

    @classmethod
    def from_options(
        cls,
        *,
        method: str = "gptq",
        bits: int | None = None,
        group_size: int | None = None,
        symmetric: bool = False,
        w8a8: bool = False,
        smoothquant: float | None = None,
        head: bool = False,
    ) -> Recipe:
        """bits None: 4, and 8 with w8a8. group_size None: see fitted(); a row with w8a8. head: 8 bits for it, too, in
        groups of that size, each weight to its nearest code.

        Raises:
            ValueError: a value is not allowed, or does not go with another one.
        """
        check_choice("method", method, METHODS)
        if bits is not None and (isinstance(bits, bool) or bits not in (4, 8)):
            raise wrong("bits", "be 4 or 8", bits)
        if group_size not in (None, -1):
            check_int("group_size", group_size)
            if group_size < 8 or group_size % 8:
                raise wrong("group_size", "be a multiple of 8, or -1 for a row at a time", group_size)
        if not w8a8:
            if smoothquant is not None:
                raise wrong("smoothquant", "be left out without w8a8: it is for activations", smoothquant)
            scheme = QuantScheme("pack-quantized", bits or 4, group_size or 128, symmetric)
            return cls(method, _and_head(scheme, head), any_groups=group_size is None)
        if method == "awq":
            raise wrong("method", "be rtn or gptq with w8a8", method, "smoothquant scales channels there")
        if bits not in (None, 8):
            raise wrong("bits", "be 8 with w8a8", bits, "leave it out")
        if group_size not in (None, -1):
            raise wrong("group_size", "be -1 with w8a8, a scale for each output", group_size, "leave it out")
        if smoothquant is not None and not 0 <= check_float("smoothquant", smoothquant) <= 1:
            raise wrong("smoothquant", "be in [0, 1]", smoothquant)
        return cls(method, _and_head(QuantScheme("int-quantized", 8, -1, True, 8), head), smoothquant)

    @property
    def needs_text(self) -> bool:
        """Round to nearest asks for none."""
        return self.method != "rtn" or self.smoothquant is not None

    def fitted(self, spec: DecoderSpec) -> Recipe:
        """Where group_size was not given, 128 is halved until it divides the inputs of each layer; below 8, it is -1.
        Raises ValueError: the inputs of a layer do not come out even in groups."""
        size = self.scheme.group_size
        inputs = sorted({spec.hidden_size, spec.num_heads * spec.head_size, spec.intermediate_size})
        if size == -1 or not any(each % size for each in inputs):
            return self
        fitting = [*(each for each in (128, 64, 32, 16, 8) if not any(width % each for width in inputs)), -1]
        if self.any_groups:
            return replace(self, scheme=_and_head(replace(self.scheme, group_size=fitting[0]), bool(self.scheme.head)))
        of, ways = ", ".join(map(str, inputs)), " or ".join(map(str, fitting))
        raise wrong("group_size", f"divide the inputs of each layer ({of})", size, f"{ways} would do")


def _and_head(scheme: QuantScheme, head: bool) -> QuantScheme:
    if not head:
        return replace(scheme, ignore=("lm_head",))
    return replace(scheme, head=QuantScheme("pack-quantized", 8, scheme.group_size, True))


def quantization_config(scheme: QuantScheme) -> dict[str, Any]:
    """What config.json has to say of weights stored by `scheme`: read_scheme() reads it back."""
    groups = {"group_0": _config_group(scheme, "Linear")}
    if scheme.head is not None:
        groups["group_1"] = _config_group(scheme.head, "lm_head")
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": scheme.format if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(scheme.ignore),
        "kv_cache_scheme": None,
    }


def _config_group(scheme: QuantScheme, target: str) -> dict[str, Any]:
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": scheme.symmetric,
        "strategy": "channel" if scheme.group_size == -1 else "group",
        "group_size": None if scheme.group_size == -1 else scheme.group_size,
        "dynamic": False,
    }
    tokens = {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "group_size": None, "dynamic": True,
    }  # fmt: skip
    return {
        "targets": [target],
        "weights": weights,
        "input_activations": None if scheme.activation_bits is None else tokens,
        "output_activations": None,
        "format": scheme.format,
    }
