"""More peers: transformers' own continuous batching, nano-vLLM on a GPU, and this course's milestones. vLLM: none"""

from __future__ import annotations

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
from folovllm.model_files import resolve_model_path
from folovllm.utils.devices import default_device
from milestones.chain import Course
from milestones.site.source import ROOT
from milestones.sources import working_tree
from milestones.trees import write_tree

WORKERS = Path(__file__).parent / "workers"
HF_CONTINUOUS = Kind("hf-continuous", WORKERS / "hf_continuous_engine.py", ("transformers",), "transformers")
# It has no other kernels than CUDA's.
NANO = "git+https://github.com/GeeeekExplorer/nano-vllm.git"
NANO_VLLM = Kind("nano-vllm", WORKERS / "nano_vllm_engine.py", ("nanovllm",), NANO)


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
    "hf-continuous": _make_hf_continuous,
    "nano-vllm": _make_nano_vllm,
    **{f"m{number}": partial(_make_milestone, name=f"m{number}") for number in range(1, 9)},
}
