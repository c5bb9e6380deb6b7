"""Checkpoints of models with experts in the layouts of AutoGPTQ, AutoAWQ and llm-compressor, and beside each one the
same model in plain weights that mean what the codes do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from folovllm.layers.quantization.codes import round_to_nearest
from folovllm.layers.quantization.formats import AWQ_ORDER, FORMATS, pack
from folovllm.model_loader.quant_scheme import QuantScheme
from tests.m7.support import read

BITS, GROUP = 4, 8
ROUTERS = ("gate", "shared_expert_gate")
_WEIGHTS = {"num_bits": BITS, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": BITS, "group_size": GROUP, "desc_act": False, "sym": True},
    "awq": {
        "quant_method": "awq", "bits": BITS, "group_size": GROUP, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": [*ROUTERS],
    },
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": _WEIGHTS, "input_activations": None}},
        "ignore": ["lm_head", r"re:.*\.gate$", r"re:.*shared_expert_gate$"],
    },
}  # fmt: skip


def stored(weight: torch.Tensor, method: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(the checkpoint's tensors of a weight [out, in], what they mean)."""
    codes = round_to_nearest(weight, bits=BITS, group_size=GROUP, symmetric=method != "awq")
    codes.scale = codes.scale.half().float()
    numbers, scales = (codes.values.int() + 8).T, codes.scale.T.half().contiguous()

    def mixed(numbers: torch.Tensor) -> torch.Tensor:  # [.., out] -> [.., out / 8]
        return pack(numbers.unflatten(1, (-1, 8))[..., AWQ_ORDER].flatten(1), BITS, 1)

    if method == "gptq":
        groups, outs = scales.shape
        zeros, groups_of = torch.zeros(groups, outs // 8, dtype=torch.int32), torch.arange(len(numbers)) // GROUP
        tensors = {"qweight": pack(numbers, BITS, 0), "qzeros": zeros, "scales": scales, "g_idx": groups_of.int()}
    elif method == "awq":
        assert codes.zero is not None
        tensors = {"qweight": mixed(numbers), "qzeros": mixed((codes.zero.int() + 8).T), "scales": scales}
    else:
        tensors = FORMATS["pack-quantized"].write(codes, QuantScheme("pack-quantized", BITS, GROUP, True), torch.half)
    return tensors, codes.dequantize()


def write(source: Path, target: Path, method: str) -> Any:
    """`target` gets the codes of the model in `source`. Returns Hugging Face's model of what they mean."""
    weights, plain, config = {}, {}, json.loads((source / "config.json").read_text())
    named = set()
    for name, weight in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if ".layers." not in name or weight.dim() != 2 or layer.rpartition(".")[2] in ROUTERS:
            weights[name] = plain[name] = weight
            continue
        tensors, plain[name] = stored(weight, method)
        weights |= {f"{layer}.{kind}": tensor.contiguous() for kind, tensor in tensors.items()}
        named.add(layer.split(".", 3)[3])
    settings = SETTINGS[method]
    if method == "gptq":  # optimum names what it quantised
        settings = settings | {"modules_in_block_to_quantize": [sorted(named)]}
    _save(target, weights, config | {"quantization_config": settings})
    return _save(target / "plain", plain, config)


def meant(folder: Path) -> Any:
    """Hugging Face's model of what the codes in `folder` mean, as we read them."""
    config, ours = json.loads((folder / "config.json").read_text()), read(folder)
    tensors = load_file(folder / "model.safetensors")
    plain = {name: tensor.float() for name, tensor in tensors.items() if name.endswith(".weight")}
    for path, layer in ours.named_modules():
        if hasattr(layer, "codes"):
            parts = layer.codes.dequantize().split(list(layer.parts.values()))
            for part, weight in zip(layer.parts, parts, strict=True):
                name = f"{path.rpartition('.')[0]}.{part}" if part else path
                plain[f"{ours.decoder_spec.name_in_checkpoint(name)}.weight"] = weight.contiguous()
    del config["quantization_config"]
    return _save(folder / "plain", plain, config)


def _save(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    if "quantization_config" in config:
        return None
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
