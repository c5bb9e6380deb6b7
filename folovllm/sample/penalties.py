"""Repetition, frequency and presence penalties, applied to the tokens that occurred and to no others.

    repetition   prompt and output   logit > 0: divided, else multiplied, once
    frequency    output only         minus penalty * times it occurred
    presence     output only         minus penalty, once

A row's counts grow with its output, one dictionary look-up per token; a step then touches a few hundred
logits per row instead of a table of counts as wide as the vocabulary.

vLLM: v1/sample/ops/penalties.py, v1/worker/gpu/sample/penalties.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from folovllm.sample.logits_processors import LogitsProcessor
from folovllm.sample.row import SamplingRow, TokenCounts
from folovllm.utils.upload import upload


class Penalties(LogitsProcessor):
    """All three penalties for the rows that have any."""

    @staticmethod
    def wanted(row: SamplingRow) -> bool:
        return _settings(row) != (1.0, 0.0, 0.0)

    def update(self, rows: Sequence[SamplingRow]) -> None:
        super().update(rows)
        self._settings = np.array([_settings(row) for row in rows], np.float32)
        for row in rows:
            if row.token_counts is None:
                row.token_counts = TokenCounts(row.prompt_token_ids)

    def apply(self, logits: Tensor) -> Tensor:
        ledgers = [row.token_counts for row in self.rows if row.token_counts is not None]
        for row, ledger in zip(self.rows, ledgers, strict=True):
            ledger.catch_up(row.output_token_ids)
        positions = np.repeat(np.arange(len(ledgers)), [ledger.size for ledger in ledgers])  # [occurrences]
        token_ids = np.concatenate([ledger.token_ids for ledger in ledgers])
        counts = np.concatenate([ledger.counts for ledger in ledgers])
        repetition, frequency, presence = self._settings[positions].T
        drop = frequency * counts + presence * (counts > 0)
        rows, columns, factor, less = upload(logits.device, positions, token_ids, repetition, drop)
        values = logits[rows, columns]
        logits[rows, columns] = torch.where(values > 0, values / factor, values * factor) - less
        return logits


def _settings(row: SamplingRow) -> tuple[float, float, float]:
    params = row.params
    return params.repetition_penalty, params.frequency_penalty, params.presence_penalty
