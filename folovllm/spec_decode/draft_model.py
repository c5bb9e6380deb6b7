"""A draft model: a small model with the same vocabulary goes ahead, token by token, and the large one checks its run.

Its keys and values are in separate tensors, which have the same blocks: what a block table says of the large model
holds for the draft, too. So forks, the prefix cache, copy-on-write and swap need no more than that the draft's tensors
are moved along.

    the sequence           t0 t1 t2 t3 t4 t5      t5 is the last token: nothing has its keys
    the draft has keys of  t0 t1 t2 t3            t4 was its last draft token, and was right: it never computed it

    forwards               t4   t5 ─▶ g6   g6 ─▶ g7   g7 ─▶ g8

What it wrote for draft tokens that were wrong is written over. A block that came into the prefix cache while nothing
was proposed has none of the draft's keys. Draft tokens behind it are worse, and so are those beyond the length that the
draft has learnt.

vLLM: v1/spec_decode/draft_model.py, llm_base_proposer.py
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from folovllm.attention.metadata import AttentionMetadata
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.greedy_run import greedy_run, prepared_run
from folovllm.request import Sequence
from folovllm.sample.sampler import greedy
from folovllm.sampling_params import SamplingType
from folovllm.spec_decode.draft_graphs import DraftGraphs
from folovllm.utils.upload import upload
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.input_batch import StepInputs
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.pinned_mover import PinnedBlockMover
from folovllm.worker.proposer import Proposer

FEW = 4
"""So many tokens without keys are computed in the run's first forward; more of them in one before it."""
MAX_ROWS = 1024
"""Tokens of such a forward. A sequence that it does not bring up to date gets no draft; it is further on next time."""


class DraftModelProposer(Proposer):
    """Args:
    model: the draft, whose weights and keys are on `device`.
    kv_cache: its own, with as many blocks as the large model's, of the same size; num_swap_blocks, too, as there.
    seed: of the draft tokens that are drawn.
    graphs: of its forwards, on a GPU.
    """

    def __init__(
        self, model: DecoderForCausalLM, kv_cache: KVCache, num_swap_blocks: int, device: torch.device, seed: int = 0,
        graphs: DraftGraphs | None = None,
    ) -> None:  # fmt: skip
        self.model, self.kv_cache, self.device, self.graphs = model, kv_cache, device, graphs
        mover = PinnedBlockMover if device.type == "cuda" else BlockMover
        self.mover = mover(kv_cache, num_swap_blocks)
        for tensor in kv_cache.tensors:  # a slot may be read that was never written, and 0 * nan is nan
            tensor.zero_()
        self.generator = torch.Generator(device).manual_seed(seed)
        self._held: dict[str, tuple[int, list[int]]] = {}
        """How many tokens of a sequence have the draft's keys, and the draft tokens behind them that have keys, too."""

    @torch.inference_mode()
    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        """The draft's likeliest continuation of each sequence, counts[i] tokens."""
        if (on_device := self.propose_on_device(seqs, counts)) is not None:
            tokens, lengths = iter(on_device[0].tolist()), on_device[1]
            drafts = [[next(tokens) for _ in range(length)] for length in lengths]
            self.drafted(seqs, drafts)
            return drafts
        decoder, lm_head = self.model.model, self.model.lm_head
        if prepared_run(decoder, lm_head) is None:
            return self._draw(seqs, counts, None)
        drafts = [[] for _ in seqs]
        indices = self._up_to_date(seqs, counts, FEW)
        if not indices:
            return drafts
        chosen = [seqs[index] for index in indices]
        starts = [self._held[seq.seq_id][0] for seq in chosen]
        known = [tokens_between(seq, start, seq.get_len()) for seq, start in zip(chosen, starts, strict=True)]
        wanted = [counts[index] for index in indices]
        found = greedy_run(decoder, decoder.embed_tokens, lm_head, known, starts, wanted, block_tables(chosen))
        for index, seq, run in zip(indices, chosen, found.tolist(), strict=True):
            drafts[index] = run[: counts[index]]
            self._held[seq.seq_id] = seq.get_len(), drafts[index][:-1]
        return drafts

    @torch.inference_mode()
    def propose_on_device(self, seqs: list[Sequence], counts: list[int]) -> tuple[torch.Tensor, list[int]] | None:
        if self.graphs is None or len(seqs) > self.graphs.sizes[-1] or max(counts, default=0) > self.graphs.most:
            return None
        indices, lengths = self._up_to_date(seqs, counts, 1), [0] * len(seqs)
        if not indices:
            return torch.zeros(0, dtype=torch.int64, device=self.device), lengths
        chosen, wanted = [seqs[index] for index in indices], [counts[index] for index in indices]
        for index, count in zip(indices, wanted, strict=True):
            lengths[index] = count
        last = [seq.get_last_token_id() for seq in chosen]
        return self.graphs.run(last, [seq.get_len() - 1 for seq in chosen], wanted, block_tables(chosen)), lengths

    def drafted(self, seqs: list[Sequence], drafts: list[list[int]]) -> None:
        for seq, draft in zip(seqs, drafts, strict=True):
            if draft:
                self._held[seq.seq_id] = seq.get_len(), draft[:-1]

    @torch.inference_mode()
    def propose_with_probabilities(
        self, seqs: list[Sequence], counts: list[int]
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        """Tokens drawn from softmax(logits / temperature), and the distributions that they were drawn from:
        [len(tokens[i]), vocab_size] float32, for each sequence. Of greedy ones, the likeliest token has all of it."""
        rows: list[list[torch.Tensor]] = [[] for _ in seqs]
        tokens = self._draw(seqs, counts, rows)
        none = torch.empty(0, self.model.decoder_spec.vocab_size, device=self.device)
        return tokens, [torch.stack(row) if row else none for row in rows]

    @torch.inference_mode()
    def computed(self, seqs: list[Sequence], inputs: StepInputs) -> None:
        prompts = None if self.graphs is None or not len(inputs.packed) else self.graphs.prompts
        shape = None if prompts is None else prompts.shape_for(inputs.num_new.tolist())
        if prompts is not None and shape is not None:
            prompts.replay(inputs, shape)
        else:
            self.model(inputs.input_ids, inputs.positions, inputs.metadata)
        for seq, num_new in zip(seqs, inputs.num_new.tolist(), strict=True):
            seq_len = seq.num_computed_tokens + num_new
            if seq_len <= seq.get_len():  # else these are draft tokens, of which propose() has taken note
                self._held[seq.seq_id] = seq_len, []

    def move(self, scheduled: SchedulerOutput) -> None:
        self.mover.move(scheduled)

    def forget(self, seq_id: str) -> None:
        self._held.pop(seq_id, None)

    def _draw(self, seqs: list[Sequence], counts: list[int], rows: list[list[torch.Tensor]] | None) -> list[list[int]]:
        """A forward for each token. rows: gets the distributions, from which is drawn; None: the likeliest tokens."""
        indices = self._up_to_date(seqs, counts, 1)
        indices.sort(key=lambda index: -counts[index])  # those that still want tokens are the first ones
        tables = block_tables([seqs[index] for index in indices])
        drafts: list[list[int]] = [[] for _ in seqs]
        ahead = 0
        while indices := [index for index in indices if counts[index] > ahead]:
            chosen = [seqs[index] for index in indices]
            ids = [drafts[index][-1] if ahead else seqs[index].get_last_token_id() for index in indices]
            starts = [seq.get_len() - 1 + ahead for seq in chosen]
            hidden = self._forward(ids, starts, [1] * len(chosen), tables[: len(chosen)])
            logits = self.model.compute_logits(hidden)
            tokens = greedy(logits) if rows is None else self._drawn(logits, chosen, [rows[index] for index in indices])
            for index, token in zip(indices, tokens.tolist(), strict=True):
                drafts[index].append(token)
                self._held[seqs[index].seq_id] = seqs[index].get_len(), drafts[index][:-1]
            ahead += 1
        return drafts

    def _drawn(self, logits: torch.Tensor, seqs: list[Sequence], rows: list[list[torch.Tensor]]) -> torch.Tensor:
        (heat,) = upload(self.device, np.array([[seq.sampling_params.temperature] for seq in seqs], np.float32))
        probs = (logits.float() / heat).softmax(-1)
        for i, seq in enumerate(seqs):
            if seq.sampling_params.sampling_type is SamplingType.GREEDY:
                probs[i] = F.one_hot(logits[i].argmax(), logits.shape[1])
            rows[i].append(probs[i])
        # The race of sample/draw.py: where a row is NaN, multinomial() fails, on a GPU for good.
        return (probs / torch.empty_like(probs).exponential_(generator=self.generator)).argmax(dim=-1)

    def _up_to_date(self, seqs: list[Sequence], counts: list[int], few: int) -> list[int]:
        """Which of the sequences that want a draft lack the keys of `few` tokens at most, the last one among them."""
        ready, behind, tokens_left = [], [], MAX_ROWS
        for index, seq in enumerate(seqs):
            if not counts[index]:
                continue
            length, start = seq.get_len(), self._start(seq)
            self._held[seq.seq_id] = start, []
            if length - start > few:
                end = min(length - 1, start + tokens_left)
                tokens_left -= end - start
                behind += [(seq, end)] if end > start else []
                if length - end > few:
                    continue
            ready.append(index)
        if behind:
            self._catch_up(behind)
        return ready

    def _start(self, seq: Sequence) -> int:
        """Where a sequence's first token without keys is; the last one is computed in any case."""
        length = seq.get_len()
        # One that is not known is a fork, or was swapped in: its blocks hold what they held.
        held, drafted = self._held.get(seq.seq_id, (length, []))
        for token, draft in zip(tokens_between(seq, held, length), drafted, strict=False):
            if token != draft:
                break
            held += 1
        return min(held, length - 1)

    def _catch_up(self, behind: list[tuple[Sequence, int]]) -> None:
        """Compute the tokens from where a sequence's keys end up to another place."""
        starts = [self._held[seq.seq_id][0] for seq, _ in behind]
        ids: list[int] = []
        for (seq, end), start in zip(behind, starts, strict=True):
            ids += tokens_between(seq, start, end)
            self._held[seq.seq_id] = end, []
        nums = [end - start for (_, end), start in zip(behind, starts, strict=True)]
        tables = block_tables([seq for seq, _ in behind])
        if self.graphs is not None and set(nums) == {1} and len(nums) <= self.graphs.sizes[-1]:
            self.graphs.run(ids, starts, nums, tables)  # for the keys: what it says next is known
        else:
            self._forward(ids, starts, nums, tables)

    def _forward(self, ids: list[int], starts: list[int], nums: list[int], tables: np.ndarray) -> torch.Tensor:
        """Hidden states of nums[i] tokens of each sequence from position starts[i] on, [num_tokens, hidden]."""
        positions, metadata = forward_inputs(starts, nums, tables, self.kv_cache.block_size, self.device)
        (input_ids,) = upload(self.device, np.array(ids))
        return self.model(input_ids, positions, metadata)


def forward_inputs(
    starts: list[int], nums: list[int], tables: np.ndarray, size: int, device: torch.device
) -> tuple[torch.Tensor, AttentionMetadata]:
    """Positions and metadata of a forward of nums[i] tokens of each sequence from position starts[i] on. tables: as
    block_tables() makes them, of blocks of `size` tokens."""
    num_new = np.array(nums)
    ends, rows = num_new.cumsum(), np.arange(len(nums)).repeat(num_new)
    positions = np.arange(ends[-1]) + (np.array(starts) + num_new - ends).repeat(num_new)
    slots = tables[rows, positions // size].astype(np.int64) * size + positions % size
    lens = np.array(starts, np.int32) + num_new.astype(np.int32)
    query_starts = np.concatenate([[0], ends]).astype(np.int32)
    device_positions, device_slots, device_starts, device_lens, device_tables = upload(
        device, positions, slots, query_starts, lens, tables
    )
    metadata = AttentionMetadata(
        query_start_loc=device_starts,
        seq_lens=device_lens,
        slot_mapping=device_slots,
        block_tables=device_tables,
        max_query_len=max(nums),
        max_seq_len=int(lens.max()),
    )
    return device_positions, metadata


def tokens_between(seq: Sequence, start: int, end: int) -> list[int]:
    """A few of a sequence's tokens, without a copy of all of them."""
    prompt = seq.get_prompt_len()
    if start >= prompt:
        return seq.data.output_token_ids[start - prompt : end - prompt]
    return seq.get_token_ids()[start:end]


def block_tables(seqs: list[Sequence]) -> np.ndarray:
    """[num_seqs, longest] int32; behind a shorter table is block 0."""
    tables = np.zeros((len(seqs), max((len(seq.block_ids) for seq in seqs), default=0)), np.int32)
    for row, seq in zip(tables, seqs, strict=True):
        row[: len(seq.block_ids)] = seq.block_ids
    return tables
