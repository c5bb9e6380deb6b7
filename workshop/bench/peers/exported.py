"""llama.cpp on exactly our weights, random ones included: these go to it as plain files.

    our weights ─▶ weights.bin, weights.json ─▶ workers/gguf_file.py ─▶ model.gguf ─▶ llama.cpp

    python -m workshop.bench.peers.exported --shape qwen3-mini --dtype bfloat16 FILE.gguf    a file for --gguf

With --quantization llama.cpp's weights have as many bits as ours. It rounds them itself, in groups of 32.

vLLM: none
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.options import add_model
from folovllm.bench.shapes import ModelShape
from folovllm.bench.workload import BenchModel, bench_model, dtype_of, hf_config_of
from folovllm.entrypoints.cli.main import run_command
from folovllm.entrypoints.cli.parser import Parser
from folovllm.model_loader.model_files import resolve_model_path
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.checks import wrong
from folovllm.utils.devices import default_device
from workshop.bench.contestant import Contestant, PeerMissingError, PeerSetup
from workshop.bench.peers.peer import WORKERS, Kind, Peer

GGUF_TYPES = {"w4a16": "Q4_0", "w4a8": "Q4_0", "w8a8": "Q8_0"}
# Its package from the index is llama.cpp for CPUs. The second one writes the file in the same Python.
LLAMA_CPP = Kind("llama-cpp", "llama_cpp_engine.py", ("llama_cpp", "numpy"), "llama-cpp-python numpy")
GGUF = Kind("llama-cpp", "gguf_file.py", ("gguf", "numpy"), "llama-cpp-python gguf numpy")


def make_llama_cpp(setup: PeerSetup) -> list[Contestant]:
    """On the user's GGUF file, or one that is written here. Raises ValueError: no such file, or ours runs on a GPU."""
    if (device := setup.device or default_device()) != "cpu":
        raise ValueError(f"peer must be one that runs on {device}, got 'llama-cpp', which is set up for CPUs here")
    gguf, kind = setup.options.get("gguf"), GGUF_TYPES.get(setup.options.get("quantization") or "")
    python = (GGUF if gguf is None else LLAMA_CPP).find_python()  # before the weights are written
    if gguf is None:
        folder = Path(setup.cleanup.enter_context(tempfile.TemporaryDirectory(prefix="folovllm-peer-")))
        export_weights(setup.model, setup.dtype, folder)
        gguf = write_gguf(folder, python, kind)
    LLAMA_CPP.find_python()
    if not Path(gguf).is_file():
        raise wrong("gguf", "be the file of the same model for the peer llama-cpp", gguf, "give --gguf FILE")
    shape = ModelShape.of(resolve_model_path(setup.model.path, weights=False))
    sizes, threads = [shape.layers, shape.hidden, shape.vocab], torch.get_num_threads()
    return [Peer(LLAMA_CPP, setup, path=gguf, dtype=setup.dtype, shape=sizes, threads=threads, **setup.limits)]


def write_gguf(folder: Path, python: str, kind: str | None = None) -> str:
    """kind: what llama.cpp makes of it, "Q4_0"; None: nothing.

    Raises PeerMissingError: there is no gguf in that Python. ValueError: the model has no counterpart there."""
    command = [python, str(WORKERS / GGUF.file), str(folder), *([kind] if kind else [])]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        *_, error = done.stderr.strip().splitlines()
        if error.startswith("ModuleNotFoundError"):
            raise PeerMissingError(f"{python} cannot import it ({error}); {GGUF.how_to}")
        raise ValueError(f"the GGUF file could not be written: {error}")
    return done.stdout.strip()


def export_weights(model: BenchModel, dtype: str, folder: Path) -> None:
    """The weights that our engine computes with, random ones included, as files for a Python that has neither torch nor
    folovllm: workers/gguf_file.py reads them.

    weights.json  {"config": {...}, "tensors": [{"name", "shape", "dtype", "offset", "bytes"}, ...]}
    weights.bin   the tensors' bytes one behind the other, under the names of a Hugging Face checkpoint
    """
    config = hf_config_of(model)
    source = weights_folder(model.path) if model.load_format == "auto" else None
    ours = build_model(config, 1, getattr(torch, dtype), torch.device("cpu"), source)
    tensors: list[dict[str, Any]] = []
    with (folder / "weights.bin").open("wb") as file:
        for name, tensor in ours.checkpoint_slots():
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            place = {"offset": file.tell(), "bytes": data.nbytes}
            tensors.append({"name": name, "shape": list(tensor.shape), "dtype": dtype, **place})
            file.write(data.data)
    facts = config.to_dict() | {"dtype": dtype}
    (folder / "weights.json").write_text(json.dumps({"config": facts, "tensors": tensors}), encoding="utf-8")


def build_parser() -> Parser:
    parser = Parser(prog="python -m workshop.bench.peers.exported", description="Weights as a GGUF file for --gguf.")
    add_model(parser)
    text = "weights of as few bits (default: as they are)"
    parser.add_argument("--quantization", choices=list(GGUF_TYPES), help=text)
    parser.add_argument("file", metavar="FILE", type=Path, help="where to write it")
    parser.set_defaults(run=_run)
    return parser


def _run(args: Any) -> int:
    with bench_model(args.model, args.shape, args.load_format) as model, tempfile.TemporaryDirectory() as folder:
        export_weights(model, dtype_of(model, args.dtype, "cpu"), Path(folder))
        kind = GGUF_TYPES.get(args.quantization)
        shutil.move(write_gguf(Path(folder), GGUF.find_python(), kind), args.file)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(build_parser, None))
