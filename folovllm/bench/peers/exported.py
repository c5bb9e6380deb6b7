"""Our weights in two plain files, for a peer that has neither torch nor folovllm: workers/gguf_file.py reads them.

    weights.json  {"config": {...}, "tensors": [{"name", "shape", "dtype", "offset", "bytes"}, ...]}
    weights.bin   the tensors' bytes one behind the other, under the names of a Hugging Face checkpoint

vLLM: none
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.workload import BenchModel
from folovllm.config import ModelConfig
from folovllm.hf_config import load_hf_config
from folovllm.models.weights import build_model, weights_folder


def export_weights(model: BenchModel, dtype: str, folder: Path) -> None:
    """Write the weights that our engine computes with, random ones included, in `dtype`."""
    config = load_hf_config(ModelConfig(model.path, load_format=model.load_format, skip_tokenizer_init=True))
    source = weights_folder(model.path) if model.load_format == "auto" else None
    ours = build_model(config, 1, getattr(torch, dtype), torch.device("cpu"), source)
    tensors: list[dict[str, Any]] = []
    offset = 0
    with (folder / "weights.bin").open("wb") as file:
        for name, tensor in ours.checkpoint_slots():
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            file.write(data.data)
            tensors.append(
                {"name": name, "shape": list(tensor.shape), "dtype": dtype, "offset": offset, "bytes": data.nbytes}
            )
            offset += data.nbytes
    facts = config.to_dict() | {"dtype": dtype}
    (folder / "weights.json").write_text(json.dumps({"config": facts, "tensors": tensors}), encoding="utf-8")
