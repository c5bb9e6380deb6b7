"""What a peer is made from, and the error of one that is not installed. vLLM: none"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from folovllm.bench.workload import BenchModel


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
    batch_size: int
    """What --peer-batch-size says, for peers that take a fixed number of prompts at a time."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the command line was given, by name: a peer that has options of its own finds them here."""
    cleanup: ExitStack = field(default_factory=ExitStack)


def load_hf_model(model: BenchModel, dtype: str, device: str | None) -> Any:
    """Hugging Face's model, on the same weights where there are any."""
    from transformers.utils import logging

    from folovllm.config import ModelConfig
    from folovllm.model_loader import ModelLoader

    logging.disable_progress_bar()  # there is one already
    config = ModelConfig(
        model.path, dtype=dtype, device=device, load_format=model.load_format, skip_tokenizer_init=True
    )
    hf_model = ModelLoader(config).load()
    # Every token counts, so none may end the text. generate() would fill an unset EOS from the model's own.
    hf_model.generation_config.eos_token_id = None
    return hf_model
