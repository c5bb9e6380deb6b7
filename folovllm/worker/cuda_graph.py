"""CUDA graphs for decode steps: a step's kernels, recorded once and launched as one.

A decode step of 28 layers is some 300 kernels of a few microseconds each; the host needs about as long to launch each,
so with small batches the GPU waits for the host. A graph is the list of these launches, replayed by a single call:

    eager   host   |k1|k2|k3|k4|k5|  …                     graph   host   |replay|
            GPU        k1  k2  k3  k4  …                           GPU         k1k2k3k4k5 …

What is recorded is fixed: addresses, shapes, and whatever the host had decided. So

    addresses   inputs are copied into buffers that stay, outputs are read from such
    shapes      a graph for each of a few batch sizes; a smaller batch is padded to the next, 3 ─▶ 4
    decisions   kernels may not choose their grid by the lengths of sequences; nothing may ask the device for a value

Steps with more than one token of a sequence run without a graph: they take long enough to hide their launches, and
their shapes differ every time. A graph holds the model, the LM head and the argmax, which is the whole draw of a greedy
batch. Random draws stay outside: a seeded sequence draws from a generator of its own, and each batch has other
sequences.

The graphs share one memory pool, as large as the largest graph needs, since only one of them runs at a time.

vLLM: v1/cudagraph_dispatcher.py, compilation/cuda_graph.py, v1/worker/gpu_model_runner.py (capture_model)
"""

from __future__ import annotations

from bisect import bisect_left

import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.sample.drawable import mark_undrawable
from folovllm.sample.sampler import greedy
from folovllm.utils.logging import init_logger
from folovllm.worker.input_batch import StepInputs

logger = init_logger(__name__)

# Larger decode batches keep the GPU busy for longer than the host needs to launch them.
MAX_GRAPH_SIZE = 512


def capture_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes to record: 1, 2, 4, then every multiple of 8 up to 256, of 16 beyond; and the largest batch.

    So a batch of more than 8 sequences is padded by less than a tenth on average, and one of 256 takes 35 graphs.
    """
    largest = min(max_num_seqs, MAX_GRAPH_SIZE)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, MAX_GRAPH_SIZE + 1, 16)]
    return [size for size in sizes if size < largest] + [largest]


def padded_size(num_seqs: int, sizes: list[int]) -> int | None:
    """The smallest of `sizes` (in rising order) that holds `num_seqs` sequences; None where all are too small."""
    place = bisect_left(sizes, num_seqs)
    return sizes[place] if place < len(sizes) else None


class GraphBuffers:
    """The tensors that recorded kernels read. They are as long as the largest batch; a graph reads the first rows."""

    def __init__(self, size: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.max_model_len = max_model_len
        max_blocks = -(-max_model_len // block_size)
        self.input_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(size, dtype=torch.int64, device=device)
        self.slot_mapping = torch.zeros(size, dtype=torch.int64, device=device)
        self.seq_lens = torch.ones(size, dtype=torch.int32, device=device)
        self.block_tables = torch.zeros(size, max_blocks, dtype=torch.int32, device=device)
        self.query_start_loc = torch.arange(size + 1, dtype=torch.int32, device=device)  # one query each

    def metadata(self, size: int) -> AttentionMetadata:
        """Metadata of the first `size` sequences. Their lengths are not known when a graph is recorded, so the longest
        allowed stands for them."""
        return AttentionMetadata(
            query_start_loc=self.query_start_loc[: size + 1],
            seq_lens=self.seq_lens[:size],
            slot_mapping=self.slot_mapping[:size],
            block_tables=self.block_tables[:size],
            max_query_len=1,
            max_seq_len=self.max_model_len,
            num_decodes=size,
        )

    def load(self, inputs: StepInputs, size: int) -> None:
        """Copy a step's inputs, padded to `size`, to where the kernels look for them."""
        metadata = inputs.metadata
        self.input_ids[:size].copy_(inputs.input_ids)
        self.positions[:size].copy_(inputs.positions)
        self.slot_mapping[:size].copy_(metadata.slot_mapping)
        self.seq_lens[:size].copy_(metadata.seq_lens)
        # Columns further right keep what they held: no kernel looks behind a sequence's end.
        self.block_tables[:size, : metadata.block_tables.shape[1]].copy_(metadata.block_tables)


class CudaGraphs:
    """One graph for each of `sizes`, recorded at once; the KV cache must be bound by then.

    Attributes:
        pool_bytes: device memory that recording took: the graphs' pool and their launch lists.
    """

    def __init__(
        self,
        model: DecoderForCausalLM,
        sizes: list[int],
        *,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self.model, self.sizes = model, sizes
        self.buffers = GraphBuffers(sizes[-1], max_model_len, block_size, device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._outputs: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        free_before = torch.cuda.mem_get_info(device)[0]
        self._capture()
        self.pool_bytes = free_before - torch.cuda.mem_get_info(device)[0]
        logger.info("CUDA graphs for %d batch sizes up to %d: %.2f GiB", len(sizes), sizes[-1], self.pool_bytes / 2**30)

    @torch.inference_mode()
    def _capture(self) -> None:
        """Record the largest graph first, so that all others fit into its memory."""
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self.sizes):
            self._forward(size)  # what a kernel does at its first call, compiling among it, must not be recorded
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._outputs[size] = self._forward(size)
            self._graphs[size] = graph

    def _forward(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        buffers = self.buffers
        hidden = self.model(buffers.input_ids[:size], buffers.positions[:size], buffers.metadata(size))
        logits = self.model.compute_logits(hidden)
        return hidden, logits, mark_undrawable(greedy(logits), logits, logits, "greedy")

    def size_for(self, num_seqs: int) -> int | None:
        """The batch size to which `num_seqs` sequences must be padded; None: no graph is that large."""
        return padded_size(num_seqs, self.sizes)

    def replay(self, inputs: StepInputs, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [size, hidden], logits [size, vocab] and their argmax [size], good until the next replay.

        The next step's replay may be queued before this step's logits have been read by the host, but not before the
        kernels that draw from them: these are queued first.
        """
        self.buffers.load(inputs, size)
        self._graphs[size].replay()
        return self._outputs[size]
