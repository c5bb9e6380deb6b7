"""A draft model's forwards as CUDA graphs: a replay makes one draft token of each sequence, and the inputs of the next.

    upload    last tokens, positions, lengths, tables
    replay    slots ─ forward ─ argmax ─▶ tokens[turn]; position + 1, length + 1, turn + 1
    replay    the same                                        as often as the longest draft has tokens
    step of the large model, which reads the tokens on the device

So the host neither waits for a token nor uploads one. A sequence that wants fewer tokens goes on beside the others:
behind its own last position it writes to the null block.

vLLM: v1/spec_decode/llm_base_proposer.py (a replay for each token, and kernels between them)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from folovllm.models.decoder import DecoderForCausalLM
from folovllm.utils.upload import longest_first, pack_inputs, upload
from folovllm.worker.cuda_graph import GraphBuffers
from folovllm.worker.prompt_graph import PromptGraphs, record_graph
from folovllm.worker.prompt_shape import PromptShape

LARGEST = 256


def draft_sizes(max_num_seqs: int) -> list[int]:
    """Powers of two, and the largest batch: a draft's rows cost little, and recording a graph some time."""
    largest = min(max_num_seqs, LARGEST)
    return [size for size in (2**power for power in range(9)) if size < largest] + [largest]


class DraftGraphs:
    """One graph for each of `sizes`, recorded at once; the draft's KV cache must be bound by then.

    Attributes:
        prompts: those in which the draft computes what the large model's have computed.
    """

    def __init__(
        self, model: DecoderForCausalLM, sizes: list[int], most: int, *, max_model_len: int, block_size: int,
        dtype: torch.dtype, device: torch.device, prompt_shapes: Sequence[PromptShape] = (),
    ) -> None:  # fmt: skip
        """most: tokens of a draft."""
        self.model, self.sizes, self.most, self.device = model, sizes, most, device
        self.block_size = block_size
        self.prompts = PromptGraphs(
            model, prompt_shapes, max_model_len=max_model_len, block_size=block_size, dtype=dtype, device=device
        )
        self.buffers = GraphBuffers(sizes[-1], max_model_len, block_size, device)
        self.tokens = torch.zeros(most + 1, sizes[-1], dtype=torch.int64, device=device)  # one more for recording
        self.turn = torch.zeros(1, dtype=torch.int64, device=device)
        self.recorded: dict[int, torch.cuda.CUDAGraph] = {}
        self.record()

    @torch.inference_mode()
    def record(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        self.prompts.record(pool)
        for size in reversed(self.sizes):
            self.buffers.clear(size)
            self.turn.zero_()
            self.recorded[size], _ = record_graph(self.model, lambda size=size: self._forward(size), pool)  # type: ignore[misc]

    def _forward(self, size: int) -> None:
        """In the place of slots, the inputs have where each sequence ends: behind its last token that is computed."""
        input_ids, positions, metadata = self.buffers.inputs(size)
        blocks = metadata.block_tables.gather(1, (positions // self.block_size)[:, None])[:, 0].long()
        slots = blocks * self.block_size + positions % self.block_size
        slots *= positions < metadata.slot_mapping  # where() would upload its 0, which a recording does not allow
        metadata.slot_mapping = slots
        tokens = self.model.compute_logits(self.model(input_ids, positions, metadata)).argmax(dim=-1)
        self.tokens[:, :size].index_copy_(0, self.turn, tokens[None])
        input_ids.copy_(tokens)
        positions.add_(1).clamp_(max=self.buffers.max_model_len - 1)
        metadata.seq_lens.add_(1).clamp_(max=self.buffers.max_model_len)
        self.turn.add_(1)

    def run(self, token_ids: list[int], starts: list[int], counts: list[int], tables: np.ndarray) -> torch.Tensor:
        """counts[i] draft tokens of each sequence, [sum of counts], those of a sequence together; on the device.

        token_ids, starts: of the last token of each sequence, and its position.  tables: [num_seqs, max_blocks] int32.
        """
        positions, wanted, count = np.array(starts), np.array(counts), len(token_ids)
        size = next(size for size in self.sizes if size >= count)
        order = longest_first(positions, size - count)
        packed = pack_inputs(size, np.array(token_ids), positions, positions + wanted, positions + 1, order)
        self.buffers.load_arrays(*upload(self.device, packed, np.pad(tables, ((0, size - count), (0, 0)))))
        self.turn.zero_()
        for _ in range(max(counts)):
            self.recorded[size].replay()
        turns = np.arange(wanted.sum()) - (wanted.cumsum() - wanted).repeat(wanted)
        (at,) = upload(self.device, turns * self.sizes[-1] + np.arange(count).repeat(wanted))
        return self.tokens.view(-1).index_select(0, at)
