"""What rank 0 asks of its model goes to the other ranks, which repeat it on their parts.

    rank 0   schedule ─ prepare ─┬─ forward ── (+) ── (+) ─┬─ logits ◀─ gather ─ sample
                                 │              │     │    │              │
    rank 1              FORWARD ─┴─▶ forward ── (+) ── (+) ─┴ LOGITS ─▶ logits

A step is sent as the arrays that InputBatch.prepare() has made, and a few numbers: 9 KB for 32 sequences of 500 tokens.
So a follower has no scheduler, no batch and no sampler. Blocks are moved before a step, and that is sent as well.

vLLM: none; its workers get the SchedulerOutput and keep a batch each (v1/executor/multiproc_executor.py)
"""

from __future__ import annotations

from enum import IntEnum

import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.sample.gumbel import GumbelParams
from folovllm.worker.block_mover import BlockMover
from folovllm.worker.cuda_graph import CudaGraphs
from folovllm.worker.input_batch import StepInputs
from folovllm.worker.pinned_mover import PinnedBlockMover

Arrays = tuple[torch.Tensor, torch.Tensor, AttentionMetadata]
"""input_ids, positions and the metadata of a forward."""

FLOWING = (torch.float32, torch.bfloat16, torch.float16)
"""What hidden states may be; a message has the number."""


class Command(IntEnum):
    """The first number of a message."""

    FORWARD, LOGITS, MOVE, REPLAY = range(4)


def pack_step(
    input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata
) -> tuple[list[int], torch.Tensor]:
    """A forward's inputs as (the numbers from which a follower knows the shapes, all arrays in one, int64)."""
    order = metadata.decode_order
    numbers = [
        len(input_ids), *metadata.block_tables.shape, -1 if order is None else len(order), metadata.max_query_len,
        metadata.max_seq_len, metadata.num_decodes, int(metadata.last_rows_only),
    ]  # fmt: skip
    arrays = [input_ids, positions, metadata.slot_mapping, metadata.query_start_loc, metadata.seq_lens]
    arrays += [metadata.block_tables.flatten(), *([] if order is None else [order])]
    return numbers, torch.cat([array.long() for array in arrays])


def step_sizes(numbers: list[int]) -> list[int]:
    """How long each of the arrays is."""
    num_tokens, num_seqs, max_blocks, num_ordered = numbers[:4]
    return [num_tokens] * 3 + [num_seqs + 1, num_seqs, num_seqs * max_blocks, max(0, num_ordered)]


def unpack_step(numbers: list[int], flat: torch.Tensor) -> Arrays:
    """What pack_step() was given."""
    _, num_seqs, max_blocks, num_ordered, max_query_len, max_seq_len, num_decodes, last_rows_only = numbers
    input_ids, positions, slots, starts, lens, tables, order = flat.split(step_sizes(numbers))
    metadata = AttentionMetadata(
        query_start_loc=starts.int(), seq_lens=lens.int(), slot_mapping=slots,
        block_tables=tables.view(num_seqs, max_blocks).int(), max_query_len=max_query_len, max_seq_len=max_seq_len,
        num_decodes=num_decodes, decode_order=None if num_ordered < 0 else order.int(),
        last_rows_only=bool(last_rows_only),
    )  # fmt: skip
    return input_ids, positions, metadata


class LeadingModel:
    """Rank 0's part of the model: what it is asked, it asks the others first."""

    def __init__(self, model: DecoderForCausalLM, group: GroupCoordinator) -> None:
        self.model, self.group, self.decoder_spec, self.modules = model, group, model.decoder_spec, model.modules

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        numbers, flat = pack_step(input_ids, positions, metadata)
        return self.group.lead([Command.FORWARD, *numbers], flat, lambda: self.model(input_ids, positions, metadata))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden.contiguous()
        message = [Command.LOGITS, len(hidden), FLOWING.index(hidden.dtype)]
        return self.group.lead(message, hidden, lambda: self.model.compute_logits(hidden))


class LeadingGraphs:
    """Rank 0's graphs: each is replayed by all. Steps with prompts have none."""

    def __init__(self, graphs: CudaGraphs, group: GroupCoordinator) -> None:
        self.graphs, self.group, self.sizes, self.prompts = graphs, group, graphs.sizes, graphs.prompts

    def replay(
        self, inputs: StepInputs, size: int, gumbel_params: GumbelParams | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tables, packed = inputs.metadata.block_tables, inputs.packed
        arrays = torch.cat([packed.flatten(), tables.flatten().long()])
        message = [Command.REPLAY, size, tables.shape[1]]
        return self.group.lead(message, arrays, lambda: self.graphs.replay(inputs, size, gumbel_params))


def pack_moves(scheduled: SchedulerOutput) -> list[int]:
    """The blocks that are moved before a step: three numbers of pairs, then the pairs."""
    kinds = (scheduled.blocks_to_swap_out, scheduled.blocks_to_swap_in, scheduled.blocks_to_copy)
    return [*map(len, kinds), *(number for pairs in kinds for pair in pairs for number in pair)]


def unpack_moves(numbers: list[int]) -> SchedulerOutput:
    """What pack_moves() was given, with nothing else in it."""
    counts, flat = numbers[:3], iter(numbers[3:])
    out, into, copies = ([(next(flat), next(flat)) for _ in range(count)] for count in counts)
    return SchedulerOutput(blocks_to_swap_out=out, blocks_to_swap_in=into, blocks_to_copy=copies)


class Follower:
    """Any rank but 0, when its model and cache are there."""

    def __init__(
        self, model: DecoderForCausalLM, mover: BlockMover | PinnedBlockMover, graphs: CudaGraphs | None,
        group: GroupCoordinator, device: torch.device,
    ) -> None:  # fmt: skip
        self.model, self.mover, self.graphs, self.group, self.device = model, mover, graphs, group, device

    @torch.inference_mode()
    def run(self) -> None:
        """Until rank 0 has gone: then EOFError is raised, or EngineDeadError if it went in the middle of a step."""
        while True:
            command, *numbers = self.group.links[0].receive()
            if command == Command.FORWARD:
                self.model(*unpack_step(numbers, self._array(sum(step_sizes(numbers)))))
            elif command == Command.LOGITS:
                size, dtype = self.model.decoder_spec.hidden_size, FLOWING[numbers[1]]
                hidden = torch.empty(numbers[0], size, dtype=dtype, device=self.device)
                self.model.compute_logits(self.group.receive(hidden))
            elif command == Command.MOVE:
                self.mover.move(unpack_moves(numbers))
            else:
                self._replay(*numbers)

    def _replay(self, size: int, max_blocks: int) -> None:
        assert self.graphs is not None  # rank 0 has them, and chose as this one did
        packed, tables = self._array(4 * size + size * max_blocks).split([4 * size, size * max_blocks])
        self.graphs.buffers.load_arrays(packed.view(4, size), tables.view(size, max_blocks))
        self.graphs.recorded[size].replay()

    def _array(self, length: int) -> torch.Tensor:
        return self.group.receive(torch.empty(length, dtype=torch.int64, device=self.device))
