"""llama.cpp and OpenVINO on exactly our weights, random ones included: these go to them as plain files.

    our weights ─▶ weights.bin, weights.json ─▶ workers/gguf_file.py ─▶ model.gguf ─▶ llama.cpp
                └▶ model.safetensors, config.json ─▶ optimum-intel ─▶ openvino_model.xml ─▶ OpenVINO GenAI

    python -m workshop.bench.peers.exported --shape qwen3-mini --dtype bfloat16 FILE.gguf    a file for --gguf

With --quantization their weights have as many bits as ours. Each rounds them itself: llama.cpp in groups of 32,
optimum-intel in groups of 128, or with 8 bits a row at a time; it has embeddings and head in 8 bits both times.

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
from safetensors.torch import save_file

from folovllm.bench.options import add_model
from folovllm.bench.workload import BenchModel, bench_model, dtype_of, hf_config_of
from folovllm.entrypoints.cli.main import run_command
from folovllm.entrypoints.cli.parser import Parser
from folovllm.model_loader.model_files import is_gguf
from folovllm.models.weights import build_model, weights_folder
from folovllm.utils.checks import wrong
from folovllm.utils.devices import default_device
from workshop.bench.contestant import Contestant, PeerMissingError, PeerSetup
from workshop.bench.peers.peer import WORKERS, Kind, Peer

GGUF_TYPES = {"w4a16": "Q4_0", "w4a8": "Q4_0", "w8a8": "Q8_0"}
# Its package from the index is llama.cpp for CPUs. The second one writes the file in the same Python.
LLAMA_CPP = Kind("llama-cpp", "llama_cpp_engine.py", ("llama_cpp", "numpy"), "llama-cpp-python numpy")
GGUF = Kind("llama-cpp", "gguf_file.py", ("gguf", "numpy"), "llama-cpp-python gguf numpy")
OPENVINO_WEIGHTS = {"w4a16": "int4", "w4a8": "int4", "w8a8": "int8"}
# optimum-intel asks for torch and torchvision, whose packages on PyPI are CUDA's.
CPU_TORCH = "--extra-index-url https://download.pytorch.org/whl/cpu"
OPENVINO = Kind(
    "openvino", "openvino_engine.py", ("openvino_genai", "optimum", "nncf"),
    f"openvino-genai optimum-intel nncf {CPU_TORCH}",
)  # fmt: skip


def make_llama_cpp(setup: PeerSetup) -> list[Contestant]:
    """On the user's GGUF file, or one that is written here. Raises ValueError: no such file, or ours runs on a GPU."""
    _check_device(LLAMA_CPP, setup)
    gguf, kind = setup.options.get("gguf"), GGUF_TYPES.get(setup.options.get("quantization") or "")
    if gguf is None and is_gguf(setup.model.path):
        gguf = setup.model.path  # the same bytes for both
    python = (GGUF if gguf is None else LLAMA_CPP).find_python()  # before the weights are written
    if gguf is None:
        folder = _new_folder(setup)
        export_weights(setup.model, setup.dtype, folder)
        gguf = write_gguf(folder, python, kind)
    LLAMA_CPP.find_python()
    if not Path(gguf).is_file():
        raise wrong("gguf", "be the file of the same model for the peer llama-cpp", gguf, "give --gguf FILE")
    config, threads = hf_config_of(setup.model), torch.get_num_threads()
    sizes = [config.num_hidden_layers, config.hidden_size, config.vocab_size]
    return [Peer(LLAMA_CPP, setup, path=gguf, dtype=setup.dtype, shape=sizes, threads=threads, **setup.limits)]


def make_openvino(setup: PeerSetup) -> list[Contestant]:
    """On a model that optimum-intel converts. Raises ValueError: it cannot, or ours runs on a GPU."""
    _check_device(OPENVINO, setup)
    python, weights = OPENVINO.find_python(), OPENVINO_WEIGHTS.get(setup.options.get("quantization") or "")
    folder = _new_folder(setup)
    config, tensors = our_weights(setup.model, setup.dtype)
    config.dtype = setup.dtype
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    command = ["-m", "optimum.commands.optimum_cli", "export", "openvino", "--task", "text-generation-with-past"]
    # Left to itself it makes 8 bits of a model from a billion weights on. What was bfloat16 the engine rounds back.
    kind = ["--weight-format", weights or "fp32"]
    _run_there(OPENVINO, [python, *command, *kind, "--model", str(folder), str(folder / "out")], "OpenVINO model")
    settings = {"weights": weights or setup.dtype, "threads": torch.get_num_threads(), **setup.limits}
    return [Peer(OPENVINO, setup, folder=str(folder / "out"), dtype=setup.dtype, **settings)]


def write_gguf(folder: Path, python: str, kind: str | None = None) -> str:
    """kind: what llama.cpp makes of it, "Q4_0"; None: nothing.

    Raises PeerMissingError: there is no gguf in that Python. ValueError: the model has no counterpart there."""
    command = [python, str(WORKERS / GGUF.file), str(folder), *([kind] if kind else [])]
    return _run_there(GGUF, command, "GGUF file")


def _run_there(kind: Kind, command: list[str], what: str) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        *_, error = done.stderr.strip().splitlines()
        if "ModuleNotFoundError" in error:
            raise PeerMissingError(f"{command[0]} cannot import it ({error}); {kind.how_to}")
        raise ValueError(f"the {what} could not be written: {error}")
    return done.stdout.strip()


def _check_device(kind: Kind, setup: PeerSetup) -> None:
    if (device := setup.device or default_device()) != "cpu":
        raise ValueError(f"peer must be one that runs on {device}, got {kind.name!r}, which is set up for CPUs here")


def _new_folder(setup: PeerSetup) -> Path:
    return Path(setup.cleanup.enter_context(tempfile.TemporaryDirectory(prefix="folovllm-peer-")))


def our_weights(model: BenchModel, dtype: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The configuration, and what our engine computes with, random weights included, under a checkpoint's names."""
    config = hf_config_of(model)
    source = weights_folder(model.path) if model.load_format == "auto" else None
    ours = build_model(config, 1, getattr(torch, dtype), torch.device("cpu"), source)
    return config, {name: tensor.detach().contiguous() for name, tensor in ours.checkpoint_slots()}


def export_weights(model: BenchModel, dtype: str, folder: Path) -> None:
    """Our weights as files for a Python that has neither torch nor folovllm: workers/gguf_file.py reads them.

    weights.json  {"config": {...}, "tensors": [{"name", "shape", "dtype", "offset", "bytes"}, ...]}
    weights.bin   the tensors' bytes one behind the other, under the names of a Hugging Face checkpoint
    """
    config, ours = our_weights(model, dtype)
    tensors: list[dict[str, Any]] = []
    with (folder / "weights.bin").open("wb") as file:
        for name, tensor in ours.items():
            data = tensor.reshape(-1).view(torch.uint8).numpy()
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
