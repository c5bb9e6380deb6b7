"""The engine and its peers behind one small interface: run prompts, say what each step took.

The peers by name are in peers/more.py.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from folovllm.bench.runs import Run
from folovllm.bench.workload import BenchModel


class Contestant(Protocol):
    name: str

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        """Generate exactly num_tokens[i] greedily for prompt i, whatever they are."""


class PeerMissingError(ValueError):
    """The peer is not installed here; the text says how it can be. The others go on without it."""


@dataclass
class PeerSetup:
    """What a peer is made from. What holds a process or memory goes onto `cleanup`, which the bench closes."""

    model: BenchModel
    dtype: str
    device: str | None
    max_model_len: int
    num_requests: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """The command's, by their names: some are for one peer."""
    cleanup: ExitStack = field(default_factory=ExitStack)

    @property
    def limits(self) -> dict[str, Any]:
        return {"max_model_len": self.max_model_len, "max_num_seqs": self.num_requests}


# One contestant for each row of the table. Attributes `batch_size` and `dtype` are shown there.
PeerMaker = Callable[[PeerSetup], list[Any]]
PEERS: dict[str, PeerMaker] = {}
PEER_OPTIONS: dict[str, dict[str, Any]] = {}
"""A flag -> the keywords of its add_argument(). PeerSetup.options has what was given."""


def add_peers(command: argparse.ArgumentParser) -> None:
    command.set_defaults(peers=[])
    if PEERS:
        text = f"take turns with {' or '.join(PEERS)}; several: A,B (default: none)"
        command.add_argument("--peer", action="append", dest="peers", metavar="PEER", help=text)
        for flag, keywords in PEER_OPTIONS.items():
            command.add_argument(flag, **keywords)


def check_peers(given: Sequence[str]) -> list[str]:
    """["hf,vllm", "llama-cpp"], as a command line has them -> one name each.

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
