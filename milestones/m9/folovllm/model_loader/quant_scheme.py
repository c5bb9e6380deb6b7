"""What a checkpoint says about its quantised weights: `quantization_config` of config.json, as one plain object.

    gptq                 4 or 8 bits, symmetric, in groups along a row
    awq                  4 bits, asymmetric, in groups
    compressed-tensors   pack-quantized: 4 or 8 bits, symmetric or not, in groups or a row at a time
                         int-quantized: 8 bits on both sides, a scale for each output and one for each token
                         either of them with weights of 4 bits beside such activations (W4A8)
                         the head, by its name, in a second group

Everything else is refused here by name, before a weight is read.

vLLM: model_executor/layers/quantization/auto_gptq.py, auto_awq.py,
      model_executor/layers/quantization/compressed_tensors/compressed_tensors.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import regex  # type: ignore[import-untyped]  # transformers has it; unlike re, it can be told how long a match may take

from folovllm.config import ModelConfig
from folovllm.utils.checks import describe

Format = Literal["gptq", "awq", "pack-quantized", "int-quantized", "plain"]
SUPPORTED = "gptq, awq, and compressed-tensors in the formats pack-quantized and int-quantized"
WAY_OUT = "load the checkpoint that it was made from, or quantise that with `folovllm quantize`"
TIED_HEAD = "model.embed_tokens"
LONGEST_MATCH = 0.5
"""Seconds for a regular expression of a checkpoint on one name."""


@dataclass(frozen=True)
class QuantScheme:
    """How the weights of linear layers are stored, and computed with."""

    format: Format
    """plain: the checkpoint is not quantised, and its weights are rounded to the nearest code when they are loaded."""
    bits: int
    group_size: int
    """Columns that share a scale; -1: all columns of a row."""
    symmetric: bool
    activation_bits: int | None = None
    """8: a layer's input is rounded to 8 bits, too, with a scale for each token; None: it stays as it is."""
    ignore: tuple[str, ...] = ()
    """Layers that stay as they are: names as Hugging Face's modules have them, or "re:" and a regular expression."""
    type: Literal["int", "float"] = "int"
    """float: 8 bits are e4m3 numbers, with a scale for each output and one for each token."""

    head: QuantScheme | None = None
    """That of the head, instead of this one, whether it has a matrix of its own or the embedding's."""

    def of_layer(self, name: str) -> QuantScheme | None:
        """That of the layer `name`, "model.layers.0.mlp.down_proj"; None: it is not quantised. A tied head is
        TIED_HEAD, and no checkpoint holds codes for it."""
        if self.head is not None and (name == "lm_head" or (name == TIED_HEAD and self.head.format == "plain")):
            return self.head
        left_out = name == TIED_HEAD or any(_matches(pattern, name) for pattern in self.ignore)
        return None if left_out else self


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return regex.match(pattern[3:], name, timeout=LONGEST_MATCH) is not None
        except TimeoutError:
            raise ValueError(
                f"quantization_config has a regular expression that takes too long, {describe(pattern)}; {WAY_OUT}"
            ) from None
    return name == pattern or name.startswith(pattern + ".")


ONLINE = {
    "w4a16": QuantScheme("plain", 4, 128, True, ignore=("lm_head",)),
    "w4a8": QuantScheme("plain", 4, 128, True, 8, ignore=("lm_head",)),
    "w8a8": QuantScheme("plain", 8, -1, True, 8, ignore=("lm_head",)),
    "fp8": QuantScheme("plain", 8, -1, True, 8, ignore=("lm_head",), type="float"),
}
"""By the value of ModelConfig.quantization: what becomes of a checkpoint that is not quantised."""
HEAD = QuantScheme("plain", 8, 128, True)
"""Of its head, where ModelConfig.quantize_head says so. What goes into it stays as it is: a logit is a sum of that."""
HEAD_TARGETS = (["lm_head"], ["re:.*lm_head"], ["re:.*lm_head$"])


def select_scheme(model_config: ModelConfig, settings: Any) -> QuantScheme | None:
    """That of a model, whose config.json has `settings` for quantization_config; None: its weights stay as they are.

    Raises:
        ValueError: see read_scheme; `quantization` asks for something else.
    """
    wanted = model_config.quantization
    if settings is None and wanted in ONLINE:
        return replace(ONLINE[wanted], head=HEAD) if model_config.quantize_head else ONLINE[wanted]
    if model_config.quantize_head:
        raise ValueError(
            f"quantize_head must come with quantization={' or '.join(map(repr, ONLINE))}, which round a checkpoint's "
            f"weights, got quantization={wanted!r}"
        )
    if settings is None and wanted is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if wanted not in (None, method) and (settings is None or isinstance(method, str)):
        is_ = "is not quantised" if method is None else f"is quantised with {method!r}"
        raise ValueError(f"quantization must fit the checkpoint, which {is_}, got {wanted!r}; leave it out")
    scheme = read_scheme(settings)
    if model_config.load_format != "dummy":
        return scheme
    # Made-up weights have nothing to be unpacked: only their number and their bits matter.
    head = scheme.head and replace(scheme.head, format="plain")
    return replace(scheme, format="plain", head=head)


def read_scheme(settings: Any) -> QuantScheme:
    """The scheme that a `quantization_config` describes.

    Raises:
        ValueError: it is damaged, or describes what is not supported; the text names the field and a way out.
    """
    if not isinstance(settings, dict):
        raise ValueError(f"quantization_config must be an object, got {describe(settings)}")
    if any(settings.get(f"load_in_{bits}bit") for bits in (4, 8)):
        raise _refused("quant_method", "bitsandbytes")
    method = settings.get("quant_method")
    readers = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors}
    if not isinstance(method, str) or method not in readers:
        raise _refused("quant_method", method)
    return readers[method](settings)


def _gptq(settings: dict[str, Any]) -> QuantScheme:
    bits, group_size = _int(settings, "bits", (4, 8)), _group_size(settings)
    if settings.get("desc_act") and group_size != -1:
        raise _refused("desc_act", True, "its columns are in another order, and groups are no longer side by side")
    if settings.get("sym", True) is not True:
        raise _refused("sym", settings["sym"])
    if settings.get("checkpoint_format", "gptq") not in ("gptq", "gptq_v2"):
        raise _refused("checkpoint_format", settings["checkpoint_format"])
    if settings.get("dynamic"):
        raise _refused("dynamic", settings["dynamic"], "its layers are quantised in different ways")
    head = () if settings.get("lm_head") else ("lm_head",)
    return QuantScheme(
        "gptq", bits, group_size, True, ignore=(*head, *_other_modules(settings), *_not_converted(settings))
    )


def _awq(settings: dict[str, Any]) -> QuantScheme:
    bits, group_size = _int(settings, "bits", (4,)), _group_size(settings)
    if settings.get("version", "gemm") not in ("gemm", "GEMM"):
        raise _refused("version", settings["version"])
    if settings.get("zero_point", True) is not True:
        raise _refused("zero_point", settings["zero_point"])
    return QuantScheme("awq", bits, group_size, False, ignore=("lm_head", *_not_converted(settings)))


def _compressed_tensors(settings: dict[str, Any]) -> QuantScheme:
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or len(groups) not in (1, 2):
        raise _refused("config_groups", groups, "one group, for all linear layers, and one for the head are supported")
    found: dict[bool, QuantScheme] = {}  # by whether it is the head's
    for group in groups.values():
        targets = group.get("targets") if isinstance(group, dict) else None
        of_head = targets in HEAD_TARGETS
        if not (of_head or targets == ["Linear"]) or of_head in found or not isinstance(group.get("weights"), dict):
            why = 'a group must have weights, and ["Linear"] for targets, or ["lm_head"] for one beside it'
            raise _refused("config_groups", group, why)
        found[of_head] = _group_scheme(group, settings)
    if False not in found:
        raise _refused("config_groups", groups, 'one of them must have ["Linear"] for targets')
    ignored = any(_matches(pattern, "lm_head") for pattern in found[False].ignore)
    return replace(found[False], head=None if ignored else found.get(True))


def _group_scheme(group: dict[str, Any], settings: dict[str, Any]) -> QuantScheme:
    weights, inputs = group["weights"], group.get("input_activations")
    stored = group.get("format") or settings.get("format")
    for name, part in (("output_activations", group.get("output_activations")), ("kv_cache_scheme", None)):
        if part or settings.get(name):
            raise _refused(name, part or settings[name])
    for name, wanted in (("type", "int"), ("dynamic", False), ("actorder", (None, False, "weight", "static"))):
        allowed = wanted if isinstance(wanted, tuple) else (wanted,)
        if weights.get(name, allowed[0]) not in allowed:
            raise _refused(f"weights.{name}", weights[name])
    if weights.get("strategy") not in ("group", "channel"):
        raise _refused("weights.strategy", weights.get("strategy"))
    group_size = _group_size(weights) if weights["strategy"] == "group" else -1
    symmetric, ignore = weights.get("symmetric", True) is True, _names(settings, "ignore")
    if stored == "pack-quantized" and inputs is None:
        return QuantScheme(stored, _int(weights, "num_bits", (4, 8)), group_size, symmetric, ignore=ignore)
    if stored in ("pack-quantized", "int-quantized") and isinstance(inputs, dict):
        bits = _int(weights, "num_bits", (4,) if stored == "pack-quantized" else (4, 8))
        _int(inputs, "num_bits", (8,))
        for name, wanted in (("type", "int"), ("dynamic", True), ("strategy", "token"), ("symmetric", True)):
            if inputs.get(name, wanted if name in ("type", "symmetric") else None) != wanted:
                raise _refused("input_activations", inputs, "a symmetric scale for each token, dynamic, is supported")
        if not symmetric or (bits == 8 and group_size != -1):
            raise _refused("weights", weights, "beside activations in 8 bits: symmetric; 8 bits in no groups")
        return QuantScheme(stored, bits, group_size, True, 8, ignore=ignore)
    raise _refused("format", stored, f"with input_activations {describe(inputs)}")


def _int(settings: dict[str, Any], name: str, allowed: Iterable[int]) -> int:
    value = settings.get(name)
    if isinstance(value, bool) or value not in tuple(allowed):
        raise _refused(name, value)
    return int(value)


def _group_size(settings: dict[str, Any]) -> int:
    size = settings.get("group_size")
    if isinstance(size, bool) or not isinstance(size, int) or (size != -1 and (size < 8 or size % 8)):
        raise _refused("group_size", size, "a multiple of 8, or -1 for a row at a time")
    return size


def _not_converted(settings: dict[str, Any]) -> Iterator[str]:
    """transformers takes a name in `modules_to_not_convert` as a regular expression from the start to the end of a
    part, or as the end of a module's name; AutoAWQ, which wrote these checkpoints, as parts of it anywhere."""
    for name in _names(settings, "modules_to_not_convert"):
        part = regex.escape(name)
        start = name if regex.search(r"[^\w.]", name) else part  # "model.layers.1." is not model.layers.10
        yield rf"re:(?:{start})(?:(?<=\.)|(?=\.|$))|.*{part}$|.*\.{part}\."


def _other_modules(settings: dict[str, Any]) -> tuple[str, ...]:
    """`modules_in_block_to_quantize` names in groups what has codes: [["self_attn.q_proj"], ["mlp.up_proj"]]."""
    groups = settings.get("modules_in_block_to_quantize") or []
    lists = isinstance(groups, list) and all(isinstance(group, list) for group in groups)
    if not lists or not all(isinstance(name, str) for group in groups for name in group):
        must = "quantization_config.modules_in_block_to_quantize must be a list of lists of names"
        raise ValueError(f"{must}, got {describe(groups)}")
    named = "|".join(regex.escape(name) for group in groups for name in group)
    return (rf"re:(?!lm_head$|.*\.(?:{named})$)",) if named else ()


def _names(settings: dict[str, Any], name: str) -> tuple[str, ...]:
    names = settings.get(name) or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError(f"quantization_config.{name} must be a list of names, got {describe(names)}")
    for each in names:
        try:
            regex.compile(each.removeprefix("re:"))
        except regex.error as error:
            raise ValueError(
                f"quantization_config.{name} has no regular expression in {describe(each)}: {error}"
            ) from error
    return tuple(names)


def _refused(field: str, value: object, why: str = "") -> ValueError:
    return ValueError(
        f"quantization_config.{field} {describe(value)} is not supported{': ' + why if why else ''}; supported are "
        f"{SUPPORTED}; {WAY_OUT}"
    )
