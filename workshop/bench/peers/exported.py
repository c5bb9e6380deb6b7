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

from folovllm.bench.contestant import Contestant
from folovllm.bench.options import add_model
from folovllm.bench.peers.apart import Kind, PeerMissingError, PeerSetup
from folovllm.bench.workload import BenchModel, bench_model, dtype_of, hf_config_of
from folovllm.entrypoints.cli.main import run_command
from folovllm.entrypoints.cli.parser import Parser
from folovllm.models.weights import build_model, weights_folder
from workshop.bench.peers.more import make_llama_cpp, require_cpu

WORKERS = Path(__file__).parent / "workers"
GGUF_TYPES = {"w4a16": "Q4_0", "w4a8": "Q4_0", "w8a8": "Q8_0"}
# In the Python that has llama.cpp.
GGUF = Kind("llama-cpp", WORKERS / "gguf_file.py", ("gguf", "numpy"), "llama-cpp-python gguf numpy")


def exported(kind: Kind, setup: PeerSetup) -> Path:
    """A folder with our weights, there as long as the peer is. Raises: as require_cpu() and Kind.find_python()."""
    require_cpu(kind.name, setup)
    kind.find_python()  # before the weights are written
    folder = Path(setup.cleanup.enter_context(tempfile.TemporaryDirectory(prefix="folovllm-peer-")))
    export_weights(setup.model, setup.dtype, folder)
    return folder


def _make_llama_cpp(setup: PeerSetup) -> list[Contestant]:
    """The user's, with a file of our own where none is given."""
    gguf = setup.options.get("gguf")
    if gguf is None:
        kind = GGUF_TYPES.get(setup.options.get("quantization") or "")
        gguf = write_gguf(exported(GGUF, setup), GGUF.find_python(), kind)
    return make_llama_cpp(setup, gguf)


def write_gguf(folder: Path, python: str, kind: str | None = None) -> str:
    """kind: what llama.cpp makes of it, "Q4_0"; None: nothing.

    Raises PeerMissingError: there is no gguf in that Python. ValueError: the model has no counterpart there."""
    command = [python, str(GGUF.engine), str(folder), *([kind] if kind else [])]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        *_, error = done.stderr.strip().splitlines()
        if error.startswith("ModuleNotFoundError"):
            raise PeerMissingError(f"{python} cannot import it ({error}); {GGUF.how_to}")
        raise ValueError(f"the GGUF file could not be written: {error}")
    return done.stdout.strip()


PEERS = {"llama-cpp": _make_llama_cpp}


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


def build_parser() -> Parser:
    parser = Parser(prog="python -m workshop.bench.peers.exported", description="Weights as a GGUF file for --gguf.")
    add_model(parser)
    parser.add_argument(
        "--quantization", choices=list(GGUF_TYPES), help="weights of as few bits (default: as they are)"
    )
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
