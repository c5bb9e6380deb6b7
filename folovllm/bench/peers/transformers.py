"""transformers' peers in processes of their own: what each keeps in memory, and how its threads wait, is not ours then.

    this process                               the same Python once more
    OwnProcess.run_mixed(prompts, counts)  ──▶ workers/run.py, transformers_engine.py: hf.py or hf_continuous.py
                                           ◀── what each step took

vLLM: none
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.contestant import Contestant, Run, Step
from folovllm.bench.peers.apart import WORKER, WORKERS, environment
from folovllm.bench.peers.setup import PeerSetup
from folovllm.bench.peers.workers.hf import batch_sizes
from folovllm.bench.peers.workers.hf_continuous import require_psutil
from folovllm.bench.pipe import Pipe

ROOT = Path(__file__).parents[3]
"""The folder that has the package in it, which may not be installed."""


class OwnProcess:
    """transformers' model behind a pipe.

    Args:
        batch_size: prompts at a time; None: its continuous batching, which schedules by itself.
    """

    def __init__(self, name: str, pipe: Pipe, batch_size: int | None) -> None:
        self.name, self._pipe, self.batch_size = name, pipe, batch_size

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        return self.run_mixed(prompts, [num_tokens] * len(prompts))

    def run_mixed(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        """Raises RuntimeError: it failed over there."""
        request = {"prompts": prompts, "num_tokens": list(num_tokens), "batch_size": self.batch_size}
        return Run(Step(*step) for step in ask(self._pipe, request)["steps"])


def ask(pipe: Pipe, request: dict[str, Any]) -> dict[str, Any]:
    answer = pipe.ask(request)
    if "error" in answer:
        raise RuntimeError(f"{pipe.name} failed: {answer['error']}; its last words:\n{pipe.last_words()}")
    return answer


def _start(name: str, setup: PeerSetup) -> Pipe:
    variables = environment(torch.get_num_threads())
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), variables.get("PYTHONPATH")]))
    pipe = Pipe(name, [sys.executable, str(WORKER)], env=variables)
    setup.cleanup.callback(pipe.close)
    settings = {"model": asdict(setup.model), "dtype": setup.dtype, "device": setup.device}
    ask(pipe, {"engine": str(WORKERS / "transformers_engine.py"), **settings})
    return pipe


def _make_static(setup: PeerSetup) -> list[Contestant]:
    pipe = _start("hf", setup)
    return [OwnProcess("hf", pipe, size) for size in batch_sizes(setup)]


def _make_continuous(setup: PeerSetup) -> list[Contestant]:
    require_psutil(setup)
    return [OwnProcess("hf-continuous", _start("hf-continuous", setup), None)]


PEERS = {"hf": _make_static, "hf-continuous": _make_continuous}
