"""A peer in a process and an environment of its own: weights go there as files, prompts and tokens as lines of JSON.

    this process                             the peer's Python
    Apart.run_mixed(prompts, counts)  ──▶    workers/run.py: a file *_engine.py
                                      ◀──    what each step took, and the tokens

An environment variable names that Python. Where it is not set, the peer may be in this one.

vLLM: none
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.contestant import Run, Step
from folovllm.bench.peers.exported import export_weights
from folovllm.bench.peers.setup import PeerMissingError, PeerSetup
from folovllm.bench.pipe import Pipe
from folovllm.utils.checks import wrong
from folovllm.utils.threads import SETTINGS, wait_policy

WORKERS = Path(__file__).parent / "workers"
WORKER = WORKERS / "run.py"


@dataclass(frozen=True)
class Kind:
    """A peer by name: the file that runs it, what must be importable there, and how that is installed."""

    name: str
    engine: Path
    modules: tuple[str, ...]
    install: str
    """The packages, as pip takes them."""

    @property
    def variable(self) -> str:
        return f"FOLOVLLM_{self.name.upper().replace('-', '_')}_PYTHON"

    @property
    def how_to(self) -> str:
        return (
            f"python3 -m venv FOLDER; FOLDER/bin/pip install {self.install}; then set {self.variable}=FOLDER/bin/python"
        )

    def find_python(self) -> str:
        """Raises PeerMissingError where neither the variable nor this Python leads to it."""
        value = os.environ.get(self.variable)
        if value:
            if shutil.which(value) is None:
                raise wrong(self.variable, "be a Python that can be run", value, self.how_to)
            return value
        lacking = [module for module in self.modules if find_spec(module) is None]
        if lacking:
            raise PeerMissingError(f"this Python has no {', '.join(lacking)}; {self.how_to}")
        return sys.executable


class Apart:
    """Several prompts at once, each with as many new tokens as it asks for, greedy. The setup ends its process."""

    def __init__(self, kind: Kind, setup: PeerSetup, **settings: Any) -> None:
        self.name, self._kind = kind.name, kind
        self.python = kind.find_python()
        self._pipe = Pipe(kind.name, [self.python, str(WORKER)], env=environment(torch.get_num_threads()))
        setup.cleanup.callback(self._pipe.close)
        self.version: str = self._ask({"engine": str(kind.engine), **settings})["version"]

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        return self.run_mixed(prompts, [num_tokens] * len(prompts))

    def run_mixed(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        return self.generate(prompts, num_tokens)[1]

    def generate(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> tuple[list[list[int]], Run]:
        """The new tokens of each prompt, and the engine's steps.

        Raises:
            RuntimeError: the peer failed, or gave another number of tokens than it was asked for.
        """
        answer = self._ask({"prompts": prompts, "num_tokens": list(num_tokens)})
        tokens: list[list[int]] = answer["tokens"]
        if [len(ids) for ids in tokens] != list(num_tokens):
            raise RuntimeError(f"{self.name} gave {[len(ids) for ids in tokens]} tokens instead of {list(num_tokens)}")
        return tokens, Run(Step(seconds, count, prefill) for seconds, count, prefill in answer["steps"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._pipe.ask(request)
        if answer.get("stage") == "import":
            raise PeerMissingError(f"{self.python} cannot import it ({answer['error']}); {self._kind.how_to}")
        if "error" in answer:
            raise RuntimeError(f"{self.name} failed: {answer['error']}; its last words:\n{self._pipe.last_words()}")
        return answer


def start(kind: Kind, setup: PeerSetup) -> Apart:
    """The peer on our weights, in files that are there as long as it is."""
    kind.find_python()  # before the weights are written
    folder = Path(setup.cleanup.enter_context(tempfile.TemporaryDirectory(prefix="folovllm-peer-")))
    export_weights(setup.model, setup.dtype, folder)
    return Apart(
        kind,
        setup,
        weights=str(folder),
        dtype=setup.dtype,
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.num_requests,
        threads=torch.get_num_threads(),
    )


def environment(threads: int) -> dict[str, str]:
    """This one with as many threads as ours. How our threads wait is our choice, and not handed on."""
    variables = dict(os.environ) | {"OMP_NUM_THREADS": str(threads)}
    if "set by folovllm" in wait_policy():
        variables = {name: value for name, value in variables.items() if name not in SETTINGS}
    return variables
