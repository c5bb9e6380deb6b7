"""Shared by the tests of the draft model: the one that ships, in a cache of its own, and Hugging Face's of the same
weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from folovllm import SamplingParams
from folovllm.attention.backend import get_backend_class, select_backend
from folovllm.config import ModelConfig
from folovllm.engine.builder.components import select_ops
from folovllm.engine.builder.proposer import DRAFT_FOLDER
from folovllm.layers.ops import LayerOps
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.models.weights import build_model
from folovllm.request import Sequence, SequenceData
from folovllm.spec_decode.draft_model import DraftModelProposer
from folovllm.worker.input_batch import InputBatch
from folovllm.worker.kv_cache import KVCache

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN = 4, 200, 256
WAYS = ("all layers in one call", "operator by operator", "torch")


def draft_proposer(way: str, num_swap_blocks: int = 0) -> DraftModelProposer:
    """In float32."""
    config, dtype = load_hf_config(ModelConfig(str(DRAFT_FOLDER))), torch.float32
    if way == "torch":
        ops, backend = LayerOps(), get_backend_class("paged_torch")
    else:
        ops = select_ops(dtype, CPU, one_by_one=way == "operator by operator", invariant=False)
        backend = select_backend(None, CPU)
    model = build_model(config, MAX_MODEL_LEN, dtype, CPU, DRAFT_FOLDER, ops=ops)
    cache = KVCache(model, backend, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=dtype, device=CPU)
    return DraftModelProposer(model, cache, num_swap_blocks, CPU)


def sequence(name: str, prompt: list[int], block_ids: list[int], **params: Any) -> Sequence:
    return Sequence(
        f"{name}-0", name, SequenceData(prompt), SamplingParams(**{"temperature": 0, **params}), block_ids=block_ids
    )


def compute(proposer: DraftModelProposer, seqs: list[Sequence], nums: list[int]) -> None:
    """A step of the large model with nums[i] tokens of each sequence, as far as the draft hears of it."""
    batch = InputBatch(len(seqs), MAX_MODEL_LEN, BLOCK_SIZE, CPU)
    for seq in seqs:
        batch.add(seq)
    proposer.computed(seqs, batch.prepare(seqs, nums, []))
    for seq, num in zip(seqs, nums, strict=True):
        seq.num_computed_tokens += num


class Oracle:
    """Hugging Face's float32, computed anew for each token."""

    def __init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(DRAFT_FOLDER, dtype=torch.float32).eval()

    @torch.no_grad()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """[len(token_ids), vocab]."""
        return self.model(torch.tensor([token_ids])).logits[0]

    def says(self, seq: Sequence, count: int) -> list[int]:
        """The `count` tokens after a sequence's."""
        token_ids = seq.get_token_ids()
        for _ in range(count):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(token_ids) - count :]
