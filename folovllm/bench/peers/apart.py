"""A peer in a process and an environment of its own: prompts and tokens go there and come back as lines of JSON.

    this process                             the peer's Python
    Apart.run(prompts, counts)  ────────▶    workers/run.py: a file *_engine.py
                                ◀────────    what each step took, and the tokens

An environment variable names that Python. Where it is not set, the peer may be in this one.

vLLM: none
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from folovllm.bench.contestant import Run, Step
from folovllm.bench.pipe import Pipe
from folovllm.bench.workload import BenchModel
from folovllm.utils.checks import wrong
from folovllm.utils.threads import SETTINGS, wait_policy

WORKERS = Path(__file__).parent / "workers"


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
    """The command's, by their names: peers have some of their own."""
    cleanup: ExitStack = field(default_factory=ExitStack)

    @property
    def limits(self) -> dict[str, Any]:
        return {"max_model_len": self.max_model_len, "max_num_seqs": self.num_requests}


@dataclass(frozen=True)
class Kind:
    """A peer by name: the file that runs it, what must be importable there, and how pip installs that."""

    name: str
    engine: Path
    modules: tuple[str, ...]
    install: str

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
        lacking = [module for module in self.modules if find_spec(module) is None]
        if lacking:
            raise PeerMissingError(f"this Python has no {', '.join(lacking)}; {self.how_to}")
        return sys.executable


class Apart:
    """Several prompts at once, each with as many new tokens as it asks for, greedy. The setup ends its process.

    Args:
        python, env: the Python that has it, and all of the environment it gets, where they are not the usual ones.
        settings: what its engine is made with.
    """

    def __init__(
        self, kind: Kind, setup: PeerSetup, python: str | None = None, env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.name, self._kind = kind.name, kind
        self.python = python or kind.find_python()
        variables = environment(torch.get_num_threads()) if env is None else env
        self.pipe = Pipe(kind.name, [self.python, str(WORKERS / "run.py")], env=variables)
        setup.cleanup.callback(self.pipe.close)
        facts = self._ask({"engine": str(kind.engine), **settings})
        self.version: str = facts["version"]
        self.dtype: str | None = facts["dtype"]
        """Of its weights, where they are not those that it was given."""

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        return self.generate(prompts, num_tokens)[1]

    def generate(self, prompts: list[list[int]], num_tokens: Sequence[int], **more: Any) -> tuple[list[list[int]], Run]:
        """The new tokens of each prompt, and the engine's steps. `more`: what else its engine takes.

        Raises:
            RuntimeError: the peer failed, or gave another number of tokens than it was asked for.
        """
        answer = self._ask({"prompts": prompts, "num_tokens": list(num_tokens), **more})
        tokens: list[list[int]] = answer["tokens"]
        if [len(ids) for ids in tokens] != list(num_tokens):
            raise RuntimeError(f"{self.name} gave {[len(ids) for ids in tokens]} tokens instead of {list(num_tokens)}")
        return tokens, Run(Step(seconds, count, prefill) for seconds, count, prefill in answer["steps"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self.pipe.ask(request)
        if answer.get("stage") == "import":
            raise PeerMissingError(f"{self.python} cannot import it ({answer['error']}); {self._kind.how_to}")
        if "error" in answer:
            raise RuntimeError(f"{self.name} failed: {answer['error']}; its last words:\n{self.pipe.last_words()}")
        return answer


def environment(threads: int) -> dict[str, str]:
    """This one with as many threads as ours. How our threads wait is our choice, and not handed on."""
    variables = dict(os.environ) | {"OMP_NUM_THREADS": str(threads)}
    if "set by folovllm" in wait_policy():
        variables = {name: value for name, value in variables.items() if name not in SETTINGS}
    return variables
