"""A peer in another process and environment: prompts and tokens go there and come back as lines of JSON.

    this process                             the peer's Python
    Peer.run(prompts, counts)  ─────────▶    a file workers/*_engine.py
                               ◀─────────    what each step took, and the tokens

An environment variable names that Python; where it is not set, the peer may be in this one.

vLLM: none
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.runs import Run, Step
from folovllm.utils.checks import wrong
from folovllm.utils.threads import SETTINGS, wait_policy
from milestones.bench.worker_process import WorkerError, WorkerProcess
from workshop.bench.contestant import PeerMissingError, PeerSetup

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).parents[3]
"""The folder that has the package in it, which may not be installed."""


@dataclass(frozen=True)
class Kind:
    """A peer by name: the file that runs it, what must be importable there, and how pip installs that."""

    name: str
    file: str
    modules: tuple[str, ...] = ()
    install: str = ""

    @property
    def variable(self) -> str:
        return f"FOLOVLLM_{self.name.upper().replace('-', '_')}_PYTHON"

    @property
    def how_to(self) -> str:
        return (
            f"python3 -m venv FOLDER; FOLDER/bin/pip install {self.install}; then set {self.variable}=FOLDER/bin/python"
        )

    def find_python(self, given: str | None = None) -> str:
        """Raises PeerMissingError where neither `given`, nor the variable, nor this Python leads to it."""
        value = given or os.environ.get(self.variable)
        if value:
            if shutil.which(value) is None:
                name = "peer_python" if given else self.variable
                raise wrong(name, "be a Python that can be run", value, self.how_to)
            return value
        missing = [module for module in self.modules if find_spec(module) is None]
        if missing:
            raise PeerMissingError(f"this Python has no {', '.join(missing)}; {self.how_to}")
        return sys.executable


class Peer:
    """Several prompts at once, each with as many new tokens as it asks for, greedy. The setup ends its process.

    Args:
        python, env: the Python that has it, and all of the environment it gets, where they are not the usual ones.
        settings: what its engine is made with.
    """

    def __init__(
        self, kind: Kind, setup: PeerSetup, python: str | None = None, env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.name, self.python = kind.name, python or kind.find_python()
        variables = environment() if env is None else env
        try:
            self.worker = WorkerProcess(kind.name, WORKERS / kind.file, settings, env=variables, python=self.python)
        except WorkerError as error:
            if error.stage == "import":
                raise PeerMissingError(f"{self.python} cannot import it ({error.reason}); {kind.how_to}") from error
            raise
        setup.cleanup.callback(self.worker.close)
        self.version: str = self.worker.facts["version"]
        self.dtype: str | None = self.worker.facts["dtype"]
        """Of its weights, where they are not those that it was given."""

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        return self.generate(prompts, num_tokens)[1]

    def generate(self, prompts: list[list[int]], num_tokens: Sequence[int], **more: Any) -> tuple[list[list[int]], Run]:
        """The new tokens of each prompt, and the engine's steps. `more`: what else its engine takes.

        Raises:
            RuntimeError: the peer failed, or gave another number of tokens than it was asked for.
        """
        answer = self.worker.ask({"prompts": prompts, "num_tokens": list(num_tokens), **more})
        tokens: list[list[int]] = answer["tokens"]
        if [len(ids) for ids in tokens] != list(num_tokens):
            raise RuntimeError(f"{self.name} gave {[len(ids) for ids in tokens]} tokens instead of {list(num_tokens)}")
        return tokens, Run(Step(seconds, count, prefill) for seconds, count, prefill in answer["steps"])


def environment() -> dict[str, str]:
    """This one with as many threads as ours. How our threads wait is our choice, and not handed on."""
    variables = dict(os.environ) | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    if "set by folovllm" in wait_policy():
        variables = {name: value for name, value in variables.items() if name not in SETTINGS}
    return variables


def start_transformers(kind: Kind, setup: PeerSetup) -> Peer:
    """A peer whose engine file imports folovllm, to load the same weights: its Python is ours."""
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    model = {name: value for name, value in asdict(setup.model).items() if name != "observers"}
    return Peer(kind, setup, sys.executable, env, model=model, dtype=setup.dtype, device=setup.device)
