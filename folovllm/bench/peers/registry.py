"""The peers by name, and how each is made from what is measured: transformers' generate(), whose Python is ours. The
workshop (`python -m workshop.bench`) adds more, and options of theirs.

vLLM: none
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.contestant import Contestant, Run
from folovllm.bench.peers.apart import WORKERS, Apart, Kind, PeerMissingError, PeerSetup, environment

ROOT = Path(__file__).parents[3]
"""The folder that has the package in it, which may not be installed."""
HF = Kind("hf", WORKERS / "hf_engine.py", ("transformers",), "transformers")


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
    engine, batch = start_transformers(HF, setup), setup.options.get("peer_batch_size", 1)
    return [InBatches(engine, size) for size in sorted({1, min(batch, setup.num_requests)})]


# One contestant for each row of the table. Attributes `batch_size` and `dtype` are shown there.
PeerMaker = Callable[[PeerSetup], list[Any]]
PEERS: dict[str, PeerMaker] = {"hf": _make_hf}
OPTIONS: dict[str, tuple[str, str]] = {}
"""Of peers: a flag -> its metavar and help. PeerSetup.options has what was given."""


def add_peers(command: argparse.ArgumentParser) -> None:
    text = f"take turns with {' or '.join(PEERS)}; several: A,B (default: none)"
    command.add_argument("--peer", action="append", default=[], dest="peers", metavar="PEER", help=text)
    for flag, (metavar, text) in OPTIONS.items():
        command.add_argument(flag, metavar=metavar, help=text)


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
