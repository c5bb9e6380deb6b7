"""transformers' own model, driven by hf.py or hf_continuous.py. The one engine here whose Python has folovllm in it.

vLLM: none
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# torch first: then its threads wait as they do for transformers' users, and not as folovllm sets it.
NEEDS = ("torch", "transformers", "folovllm")
Step = tuple[float, int, bool]


class Engine:
    """Hugging Face's model on the weights that `model` names, or on random ones."""

    def __init__(self, model: dict[str, str], dtype: str, device: str | None) -> None:
        self.version: str = import_module("transformers").__version__
        workload = import_module("folovllm.bench.workload")
        self.model = import_module("folovllm.bench.peers.setup").load_hf_model(
            workload.BenchModel(**model), dtype, device
        )

    def generate(
        self, prompts: list[list[int]], num_tokens: list[int], batch_size: int | None
    ) -> tuple[list[Step], list[list[int]]]:
        """generate() of `batch_size` prompts at a time, which tells no tokens; None: generate_batch()'s parts."""
        tokens: list[list[int]] = []
        run: Any
        if batch_size is None:
            continuous = import_module("folovllm.bench.peers.workers.hf_continuous").HuggingFaceContinuous(self.model)
            tokens, run = continuous.generate(prompts, num_tokens)
        else:
            static = import_module("folovllm.bench.peers.workers.hf").HuggingFace(self.model, batch_size)
            run = static.run_mixed(prompts, num_tokens)
        return [(step.seconds, step.tokens, step.prefill) for step in run], tokens
