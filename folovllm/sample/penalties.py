"""Repetition, frequency and presence penalties, applied to the tokens that occurred and to no others.

    repetition   prompt and output   logit > 0: divided, else multiplied, once
    frequency    output only         minus penalty * times it occurred
    presence     output only         minus penalty, once

A row's counts grow with its output, one dictionary look-up per token; a step then touches a few hundred
logits per row instead of a table of counts as wide as the vocabulary.

vLLM: v1/sample/ops/penalties.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from folovllm.sample.logits_processors import LogitsProcessor

if TYPE_CHECKING:
    from folovllm.sample.metadata import SamplingRow


class TokenCounts:
    """The distinct tokens of one sequence, and how often each occurs in its OUTPUT (0: in the prompt alone).

    Kept on the SamplingRow: it outlives changes of the batch, and reads each token once.
    """

    __slots__ = ("_counts", "_num_counted", "_slot_of", "_token_ids", "size")

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt_token_ids)
        self._slot_of: dict[int, int] = {token_id: slot for slot, token_id in enumerate(distinct)}
        self.size = len(distinct)
        self._token_ids = np.fromiter(distinct, np.int64, self.size)
        self._counts = np.zeros(self.size, np.float32)
        self._num_counted = 0

    def catch_up(self, output_token_ids: list[int]) -> None:
        """Counts what the live list gained since the last call."""
        for token_id in output_token_ids[self._num_counted :]:
            slot = self._slot_of.setdefault(token_id, self.size)
            if slot == self.size:
                self._append(token_id)
            self._counts[slot] += 1
        self._num_counted = len(output_token_ids)

    @property
    def token_ids(self) -> np.ndarray:
        return self._token_ids[: self.size]

    @property
    def counts(self) -> np.ndarray:
        return self._counts[: self.size]

    def _append(self, token_id: int) -> None:
        if self.size == len(self._token_ids):
            room = max(64, self.size)
            self._token_ids = np.concatenate([self._token_ids, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._token_ids[self.size] = token_id
        self.size += 1


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
        at = (_to(logits, positions), _to(logits, token_ids))
        factor, drop = _to(logits, repetition), _to(logits, frequency * counts + presence * (counts > 0))
        values = logits[at]
        logits[at] = torch.where(values > 0, values / factor, values * factor) - drop
        return logits


def _settings(row: SamplingRow) -> tuple[float, float, float]:
    params = row.params
    return params.repetition_penalty, params.frequency_penalty, params.presence_penalty


def _to(logits: Tensor, array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(logits.device)
