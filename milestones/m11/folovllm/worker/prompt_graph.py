"""CUDA graphs for steps of up to 2,048 tokens: prompts, decodes and parts of prompts in any mixture, or drafts.

A graph ends with the hidden states. Which of its rows are drawn from differs from step to step, so the LM head and the
draw are launched behind it: the host has the time, since the device computes the layers meanwhile.

vLLM: v1/cudagraph_dispatcher.py (whole graphs for mixed batches)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from folovllm.models.decoder import DecoderForCausalLM
from folovllm.worker.input_batch import StepInputs
from folovllm.worker.prompt_shape import MAX_PROMPTS, PromptShape


class PromptGraphs:
    """One graph for each of `shapes`, to be recorded when the KV cache is bound.

    Attributes:
        graph_bytes: device memory that recording each of them took.
    """

    def __init__(
        self, model: DecoderForCausalLM, shapes: Sequence[PromptShape], *, max_model_len: int, block_size: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self.model, self.shapes = model, shapes
        self.max_model_len, self.block_size = max_model_len, block_size
        most_tokens = max((shape.num_tokens for shape in shapes), default=0)
        max_blocks = -(-max(max_model_len, most_tokens) // block_size)  # padding, too, is a sequence
        num_words = max((shape.num_words for shape in shapes), default=0)
        num_seqs = max((shape.num_seqs for shape in shapes), default=0)
        groups = groups_of(model)
        self.packed = torch.zeros(num_words + (groups - 1) * most_tokens, dtype=torch.int64, device=device)
        self.block_tables = torch.zeros(groups, num_seqs + 1, max_blocks, dtype=torch.int32, device=device)
        self.hidden = torch.empty(most_tokens, model.decoder_spec.hidden_size, dtype=dtype, device=device)
        self.recorded: dict[PromptShape, torch.cuda.CUDAGraph] = {}
        self.graph_bytes: dict[PromptShape, int] = {}

    @torch.inference_mode()
    def record(self, pool: Any) -> None:
        """In the memory of `pool`. The largest comes first, so that all others fit into its memory."""
        none = np.zeros(0, np.int64)
        for shape in reversed(self.shapes):
            only_padding = shape.pack([none] * 5, none, self.block_size, [none] * (len(self.block_tables) - 1))
            self.packed[: len(only_padding)].copy_(torch.from_numpy(only_padding))
            graph, num_bytes = record_graph(self.model, lambda shape=shape: self._forward(shape), pool)  # type: ignore[misc]
            self.recorded[shape], self.graph_bytes[shape] = graph, num_bytes

    def _forward(self, shape: PromptShape) -> None:
        inputs = shape.unpack(self.packed, self._tables(shape), self.max_model_len)
        self.hidden[: shape.num_tokens].copy_(self.model(*inputs))

    def _tables(self, shape: PromptShape) -> torch.Tensor:
        """Of its sequences. The last row of all is the padding's in any graph, and stays zero; drafts have none."""
        behind = -1 if shape.draft_len else None
        return self.block_tables[:, :behind][:, -shape.num_seqs :]

    def shape_for(self, nums: list[int]) -> PromptShape | None:
        """The smallest, and of those the one with the fewest decodes, that has room for such a step; None: none has.
        nums: of each sequence, how many tokens it computes."""
        num_tokens, num_decodes = sum(nums), sum(1 for _ in takewhile(lambda num: num == 1, nums))
        if len(nums) - num_decodes > MAX_PROMPTS:
            return None
        fits = (s for s in self.shapes if num_tokens <= s.num_tokens and num_decodes <= s.num_decodes)
        return next((shape for shape in fits if not shape.draft_len), None)

    def shape_for_drafts(self, nums: list[int]) -> PromptShape | None:
        """That in which sequence i verifies nums[i] - 1 draft tokens; None: there is none, or most of it is padding."""
        shape = next((shape for shape in self.shapes if shape.draft_len and len(nums) <= shape.num_seqs), None)
        return None if shape is None or 2 * sum(nums) < shape.num_seqs * (1 + shape.draft_len) else shape

    def replay(self, inputs: StepInputs, shape: PromptShape) -> torch.Tensor:
        """hidden [shape.num_tokens, hidden], of which the first rows are the step's; good until the next replay."""
        tables, decodes = inputs.tables, min(inputs.metadata.num_decodes, shape.num_decodes)
        self.packed[: len(inputs.packed)].copy_(inputs.packed)
        self.packed[: len(inputs.input_ids)].copy_(inputs.input_ids)  # with tokens that only the device knows
        # Columns further right keep what they held: no kernel reads behind a sequence's end.
        for rows, first in ((tables[:, :decodes], 0), (tables[:, decodes:], shape.num_decodes)):
            _, count, max_blocks = rows.shape
            if count:
                self._tables(shape)[:, first : first + count, :max_blocks].copy_(rows)
        self.recorded[shape].replay()
        return self.hidden[: shape.num_tokens]


def groups_of(model: DecoderForCausalLM) -> int:
    """How many there are, with a block table each, in the KV cache that is bound."""
    return 1 + max(layer.group for layer in model.attention_layers)


def record_graph(model: DecoderForCausalLM, forward: Callable[[], None], pool: Any) -> tuple[torch.cuda.CUDAGraph, int]:
    """What `forward` launches, and the bytes that recording it took. Nothing that is made there may be kept: it would
    be in the pool, where every graph writes."""
    forward()  # what a kernel does at its first call, compiling among it, must not be recorded
    torch.cuda.empty_cache()  # torch.cuda.graph does it too, and what it gives back is not the graph's
    free_before = torch.cuda.mem_get_info()[0]
    graph = torch.cuda.CUDAGraph()
    # NCCL's own thread asks the device now and then, which only the recording thread must not do.
    mode = "global" if model.model.ops.group is None else "thread_local"
    with torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
        forward()
    return graph, free_before - torch.cuda.mem_get_info()[0]
