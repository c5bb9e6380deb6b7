"""The persistent batch, called in one way by tests of all milestones."""

from __future__ import annotations

import numpy as np

from folovllm.request import Sequence
from folovllm.worker.input_batch import InputBatch, StepInputs


def prepare(batch: InputBatch, seqs: list[Sequence], num_scheduled_tokens: list[int]) -> StepInputs:
    return batch.prepare(seqs, num_scheduled_tokens, forks=[])


def last_tokens(inputs: StepInputs) -> list[int]:
    """Where in the flat tokens the ones stand whose logits are drawn from."""
    return list(range(len(inputs.input_ids))) if inputs.logits_at is None else inputs.logits_at.tolist()


def advance(batch: InputBatch, inputs: StepInputs, seqs: list[Sequence], token_ids: list[int]) -> None:
    batch.advance(inputs, seqs, np.array(token_ids))
