"""A folder as compressed-tensors writes them, of a well-known shape and with nothing but its config.json: for engines
that fill in random weights, so that two of them are measured on the same kind of quantised weights.

    python -m workshop.quantized_shape --shape qwen3-0.6b w4a16 FOLDER
    python -m workshop.bench throughput --model FOLDER --load-format dummy --peer vllm

vLLM: none
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from folovllm.bench.shapes import DEFAULT_SHAPE, SHAPES
from folovllm.bench.workload import shape_config

COMMON = {"type": "int", "symmetric": True}
BY_TOKEN = {**COMMON, "num_bits": 8, "strategy": "token", "dynamic": True}
GROUPS = {**COMMON, "num_bits": 4, "strategy": "group", "group_size": 128, "dynamic": False}
CHANNELS = {**COMMON, "num_bits": 8, "strategy": "channel", "dynamic": False}
# Name: format, weights, activations.
SCHEMES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "w4a16": ("pack-quantized", GROUPS, None),
    "w4a8": ("int-quantized", GROUPS, BY_TOKEN),
    "w8a8": ("int-quantized", CHANNELS, BY_TOKEN),
}


def quantization_config(scheme: str) -> dict[str, Any]:
    stored, weights, inputs = SCHEMES[scheme]
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": stored}
    return {
        "quant_method": "compressed-tensors",
        "format": stored,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def write(shape: str, scheme: str, folder: Path) -> None:
    shape_config(shape).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["quantization_config"] = quantization_config(scheme)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the config.json of a quantised model of a shape.")
    parser.add_argument("--shape", choices=list(SHAPES), default=DEFAULT_SHAPE)
    parser.add_argument("scheme", choices=list(SCHEMES))
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args(arguments)
    write(chosen.shape, chosen.scheme, chosen.folder)


if __name__ == "__main__":
    main()
