"""Runs the model for one sequence and draws its next token.

Prefill and decode are the same code: a step feeds the tokens whose K and V are not in the cache yet, which are the
whole prompt at first and one token from then on.

    prefill   input_ids p0 p1 p2 p3   positions 0 1 2 3   ─▶ logits of the last row ─▶ t4
    decode    input_ids t4            positions 4         ─▶ logits                 ─▶ t5

vLLM: v1/worker/gpu_model_runner.py, v1/worker/gpu/model_runner.py
"""

from __future__ import annotations

import math

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence
from folovllm.sample.draw import NOT_FINITE, sampling_error
from folovllm.sample.logprobs import gather_logprobs
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow, make_generator
from folovllm.sample.sampler import Sampler
from folovllm.worker.kv_cache import ContiguousKVCache
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput

# Prompt positions whose logits are held at once when prompt_logprobs asks for all of them: 64 rows of 151,936 float32
# logits are 39 MB, a 4,000-token prompt in one piece would be 2.4 GB.
PROMPT_LOGPROBS_ROWS = 64


class ModelRunner:
    """Holds the model, the KV cache of the running sequence and that sequence's sampling state."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: type[AttentionBackend],
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.model, self.device = model, device
        self.max_model_len, self.eos_token_ids = max_model_len, eos_token_ids
        self.kv_cache = ContiguousKVCache(model, backend, dtype, device)
        self.sampler = Sampler()
        self.vocab_size = model.decoder_spec.vocab_size
        self._running: str | None = None
        self._sampling: SamplingMetadata | None = None

    @torch.inference_mode()
    def execute_model(self, seq: Sequence) -> ModelRunnerOutput:
        """One step of `seq`, which must run to its end before another begins: there is one cache.

        Advances seq.num_computed_tokens, unless it fails or is interrupted: then the same step can be asked for again.
        Appending the token is the caller's business.

        Raises:
            LogitsNotFiniteError, NoTokenLeftError: there is nothing to draw from.
        """
        if seq.num_computed_tokens == 0:
            self._begin(seq)
        if seq.seq_id != self._running or self._sampling is None:
            raise RuntimeError(f"sequence {seq.seq_id!r} lost its KV cache to {self._running!r} before it finished")
        start = seq.num_computed_tokens
        new_tokens = seq.get_token_ids() if start == 0 else seq.data.output_token_ids[-1:]
        hidden = self._forward(new_tokens, start)
        sampled = self.sampler(self.model.compute_logits(hidden[-1:]), self._sampling)
        token_id = int(sampled.token_ids[0])
        if token_id < 0:
            raise sampling_error(token_id, seq.request_id, seq.sampling_params)
        output = ModelRunnerOutput(
            token_id=token_id,
            logprobs=LogprobsRow.from_tensors(sampled.logprobs)[0] if sampled.logprobs is not None else None,
            prompt_logprobs=self._prompt_logprobs(seq, hidden) if start == 0 else None,
        )
        seq.num_computed_tokens = start + len(new_tokens)
        return output

    def _begin(self, seq: Sequence) -> None:
        params = seq.sampling_params
        longest = seq.get_prompt_len() + (params.max_tokens or self.max_model_len)
        self.kv_cache.reserve(min(longest, self.max_model_len))
        self._running = seq.seq_id
        self._row = SamplingRow(
            params=params,
            prompt_token_ids=seq.data.prompt_token_ids,
            output_token_ids=seq.data.output_token_ids,  # the live list: penalties and bad_words see it grow
            eos_token_ids=self.eos_token_ids,
            generator=make_generator(params, seq.index, self.device),
            bad_words_token_ids=params.bad_words_token_ids,
        )
        self._sampling = SamplingMetadata.build([self._row], self.vocab_size, self.device)

    def _forward(self, token_ids: list[int], start: int) -> torch.Tensor:
        """Hidden states [len(token_ids), hidden] of tokens at positions start, start + 1, ..."""
        num_tokens, seq_len = len(token_ids), start + len(token_ids)
        positions = torch.arange(start, seq_len, device=self.device)
        metadata = AttentionMetadata(
            query_start_loc=torch.tensor([0, num_tokens], dtype=torch.int32, device=self.device),
            seq_lens=torch.tensor([seq_len], dtype=torch.int32, device=self.device),
            slot_mapping=positions,  # the one block starts at slot 0, so a position is its own slot
            block_tables=torch.zeros(1, 1, dtype=torch.int32, device=self.device),
            max_query_len=num_tokens,
            max_seq_len=seq_len,
        )
        return self.model(torch.tensor(token_ids, device=self.device), positions, metadata)

    def _prompt_logprobs(self, seq: Sequence, hidden: torch.Tensor) -> list[LogprobsRow] | None:
        """Row i is about prompt token i + 1: the logits after token i say how likely that token was.

        All sequences of a request have the same prompt, so the first one answers for all.
        """
        num_top = seq.sampling_params.prompt_logprobs
        if num_top is None or seq.index != 0:
            return None
        targets = torch.tensor(seq.data.prompt_token_ids[1:], device=self.device)
        rows: list[LogprobsRow] = []
        for at in range(0, len(targets), PROMPT_LOGPROBS_ROWS):
            wanted = targets[at : at + PROMPT_LOGPROBS_ROWS]
            logits = self.model.compute_logits(hidden[at : at + len(wanted)])
            logprobs = logits.float().log_softmax(dim=-1)
            rows += LogprobsRow.from_tensors(gather_logprobs(logprobs, num_top, wanted))
        if any(math.isnan(row.logprobs[0]) for row in rows):  # log_softmax makes NaN of logits that are not finite
            raise sampling_error(NOT_FINITE, seq.request_id, seq.sampling_params)
        return rows
