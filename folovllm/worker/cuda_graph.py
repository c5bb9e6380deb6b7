"""CUDA graphs for decode steps: a step's kernels, recorded once and launched as one.

A decode step of 28 layers is some 300 kernels of a few microseconds each; the host needs about as long to launch each,
so with small batches the GPU waits for the host. A graph is the list of these launches, replayed by a single call:

    eager   host   |k1|k2|k3|k4|k5|  …                     graph   host   |replay|
            GPU        k1  k2  k3  k4  …                           GPU         k1k2k3k4k5 …

What is recorded is fixed: addresses, shapes, and whatever the host had decided. So

    addresses   inputs are copied into buffers that stay, outputs are written into such, the same for all graphs
    shapes      a graph for each of a few batch sizes; a smaller batch is padded to the next, 3 ─▶ 4
    decisions   kernels may not choose their grid by the lengths of sequences; nothing may ask the device for a value

Steps with more than one token of a prompt, or with drafts, have graphs of another kind (prompt_graph.py). A graph of
decodes holds the model, the LM head and the draw, of greedy sequences and of random ones: the sampling kernel's noise
comes from a seed and a position, which are in buffers as the token ids are, and not from a generator. What is edited or
reported beside the draw stays outside: penalties, masks, log-probabilities.

Where requests may name adapters, each size is recorded twice: a step in which nobody does is not to launch the kernels
that add them, which are as many as its others.

The graphs share one memory pool, as large as the largest graph needs, since only one of them runs at a time.

vLLM: v1/cudagraph_dispatcher.py, compilation/cuda_graph.py, v1/worker/gpu_model_runner.py (capture_model)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.layers.linear import LinearMethod, LMHead
from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec
from folovllm.sample.gumbel import NUM_SETTINGS, GumbelParams
from folovllm.utils.upload import unpack_inputs
from folovllm.worker.input_batch import StepInputs
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.prompt_graph import LoRABuffer, PromptGraphs, groups_of, record_graph
from folovllm.worker.prompt_shape import PromptShape

# Larger decode batches keep the GPU busy for longer than the host needs to launch them.
MAX_GRAPH_SIZE = 512
# Tokens that a graph computes at least. cuBLAS multiplies one row more slowly than eight: 915 against 716 us a step of
# Qwen3-0.6B on an H200.
FEWEST_TOKENS = 8


def capture_sizes(max_num_seqs: int) -> list[int]:
    """The batch sizes to record: 1, 2, 4, then every multiple of 8 up to 256, of 16 beyond; and the largest batch.

    So a batch of more than 8 sequences is padded by less than a tenth on average, and one of 256 takes 35 graphs.
    """
    largest = min(max_num_seqs, MAX_GRAPH_SIZE)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, MAX_GRAPH_SIZE + 1, 16)]
    return [size for size in sizes if size < largest] + [largest]


def padded_size(num_seqs: int, sizes: list[int]) -> int | None:
    """The smallest of `sizes` (in rising order) that holds `num_seqs` sequences; None where all are too small."""
    index = bisect_left(sizes, num_seqs)
    return sizes[index] if index < len(sizes) else None


class GraphBuffers:
    """The tensors that recorded kernels read. They are as long as the largest batch; a graph reads the first rows.

    A graph of fewer sequences than fewest_tokens computes so many tokens. Those behind its sequences are no sequences:
    they go to slot 0, attention leaves them out, and nothing of them is read. Each group of layers has slots and block
    tables of its own.
    """

    def __init__(
        self, size: int, max_model_len: int, block_size: int, device: torch.device, fewest_tokens: int = 1,
        num_groups: int = 1,
    ) -> None:  # fmt: skip
        self.max_model_len = max_model_len
        max_blocks = -(-max_model_len // block_size)
        self.packed = torch.zeros(3 + num_groups, size, dtype=torch.int64, device=device)
        # Of a few sequences each number has its own array, so that what is behind them stays zero.
        few = range(1, fewest_tokens)
        self._few = {count: self.packed.new_zeros(3 + num_groups, fewest_tokens) for count in few}
        self.block_tables = torch.zeros(num_groups, size, max_blocks, dtype=torch.int32, device=device)
        self.query_start_loc = torch.arange(size + 1, dtype=torch.int32, device=device)  # one query each
        self.settings = torch.zeros(NUM_SETTINGS, size, dtype=torch.int64, device=device)
        self._settings_of: GumbelParams | None = None

    def inputs(self, size: int) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
        """input_ids, positions and metadata of the first `size` sequences. Their lengths are not known when a graph is
        recorded, so the longest allowed is given."""
        input_ids, positions, slots, _, *further = self._few.get(size, self.packed[:, :size]).unbind(0)
        _, _, _, seq_lens, decode_order = unpack_inputs(self._packed(size)[:4])
        metadata = AttentionMetadata(
            query_start_loc=self.query_start_loc[: size + 1],
            seq_lens=seq_lens,
            slot_mapping=slots,
            block_tables=self.block_tables[0, :size],
            max_query_len=1,
            max_seq_len=self.max_model_len,
            num_decodes=size,
            decode_order=decode_order,
        )
        metadata.add_groups(further, self.block_tables[1:, :size])
        return input_ids, positions, metadata

    def _packed(self, size: int) -> torch.Tensor:
        """Of the first `size` sequences."""
        return self._few.get(size, self.packed)[:, :size]

    def gumbel_params(self, size: int) -> tuple[GumbelParams, torch.Tensor]:
        """Settings and positions with which the first `size` sequences draw."""
        return GumbelParams(self.settings[:, :size]), self._packed(size)[1]

    def clear(self, size: int) -> None:
        """`size` sequences of one token, all of them padding."""
        packed = self._packed(size).zero_()
        _, _, _, seq_lens, decode_order = unpack_inputs(packed[:4])
        seq_lens.fill_(1)
        decode_order.copy_(self.query_start_loc[:size])  # 0, 1, 2 ...

    def load(self, inputs: StepInputs, size: int, gumbel_params: GumbelParams | None) -> None:
        """Copy a step's inputs, padded to `size`, to where the kernels look for them. The settings of the draws are
        copied only when they are others than the last time. None: no draw of the step is read."""
        self.load_arrays(inputs.packed, inputs.tables)
        if gumbel_params is not None and gumbel_params is not self._settings_of:
            count = gumbel_params.packed.shape[1]
            self.settings[:, :count].copy_(gumbel_params.packed)
            self.settings[:, count:size].zero_()  # padding is greedy
            self._settings_of = gumbel_params

    def load_arrays(self, packed: torch.Tensor, tables: torch.Tensor) -> None:
        """StepInputs.packed, and its tables: [size, max_blocks] where there is one group."""
        size, max_blocks = tables.shape[-2:]
        self._packed(size).copy_(packed)
        # Columns further right keep what they held: no kernel reads behind a sequence's end.
        self.block_tables[:, :size, :max_blocks].copy_(tables)


class GraphOutputs:
    """The tensors that recorded kernels write: one set for all sizes, since a step's outputs are read before the next
    step. The logits of 256 sequences over 151,936 tokens are 78 MB; a set for each of 35 sizes would be 1.2 GiB."""

    def __init__(self, size: int, spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.hidden = torch.empty(size, spec.hidden_size, dtype=dtype, device=device)
        self.logits = torch.empty(size, spec.vocab_size, dtype=dtype, device=device)
        self.tokens = torch.zeros(size, dtype=torch.int64, device=device)

    def first(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [size, hidden], logits [size, vocab] and what was drawn from them [size]."""
        return self.hidden[:size], self.logits[:size], self.tokens[:size]


class CudaGraphs:
    """One graph for each of `sizes`, recorded at once; the KV cache must be bound by then.

    Attributes:
        draws: whether the graphs draw, with the sampling kernel; else they end with the logits.
        graph_bytes: device memory that recording each of them took: of the pool, and for its list of launches.
        prompts: those for steps with prompts, in the same pool.
    """

    def __init__(
        self, model: DecoderForCausalLM, sizes: list[int], *, max_model_len: int, block_size: int,
        dtype: torch.dtype, device: torch.device, draws: bool, prompt_shapes: Sequence[PromptShape] = (),
    ) -> None:  # fmt: skip
        self.model, self.sizes, self.draws = model, sizes, draws
        self.prompts = PromptGraphs(
            model, prompt_shapes, max_model_len=max_model_len, block_size=block_size, dtype=dtype, device=device
        )
        # Each token more would ask for experts of its own.
        fewest = FEWEST_TOKENS if device.type == "cuda" and model.decoder_spec.experts is None else 1
        self.buffers = GraphBuffers(sizes[-1], max_model_len, block_size, device, fewest, groups_of(model))
        self.lora = LoRABuffer(model, max(sizes[-1], fewest), device)
        self.outputs = GraphOutputs(sizes[-1], model.decoder_spec, dtype, device)
        # By size, and whether it adds adapters; replayed on whatever the buffers hold.
        self.recorded: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.graph_bytes: dict[int, int] = Counter()
        self.record()

    @property
    def pool_bytes(self) -> int:
        return sum(self.graph_bytes.values()) + sum(self.prompts.graph_bytes.values())

    @torch.inference_mode()
    def record(self) -> None:
        """Record the largest graph first, so that all others fit into its memory."""
        pool = torch.cuda.graph_pool_handle()
        self.prompts.record(pool)
        for size, adds_lora in product(reversed(self.sizes), self.lora.kinds):
            self.buffers.clear(size)
            graph, num_bytes = record_graph(self.model, partial(self._forward, size, adds_lora), pool)
            self.recorded[size, adds_lora] = graph
            self.graph_bytes[size] += num_bytes

    def _forward(self, size: int, adds_lora: bool = False) -> None:
        """Compute the first `size` rows of the inputs into the first rows of the outputs. Nothing else that is made
        here may be kept: it would be in the graphs' pool, where every graph writes."""
        hidden, logits, tokens = self.outputs.first(size)
        input_ids, positions, metadata = self.buffers.inputs(size)
        metadata.lora = self.lora.first(len(input_ids)) if adds_lora else None
        hidden.copy_(self.model(input_ids, positions, metadata)[:size])
        head = self.model.lm_head
        if (
            type(head) is LMHead and type(head.method) is LinearMethod
        ):  # into place: a copy would read and write 304 KB a row
            torch.mm(hidden, head.weight.t(), out=logits)
        else:
            computed = self.model.compute_logits(hidden)
            logits[: len(computed)].copy_(computed)  # on other ranks than the first there are no rows
        if self.draws:
            gumbel_params, positions = self.buffers.gumbel_params(size)
            gumbel_params.draw(logits, positions, out=tokens)

    def replay(
        self, inputs: StepInputs, size: int, gumbel_params: GumbelParams | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [size, hidden], logits [size, vocab] and the tokens [size] that were drawn with the settings of
        `gumbel_params`, if there are any; good until the next replay.

        The next step's replay may be queued before this step's logits have been read by the host, but not before the
        kernels that draw from them: these are queued first.
        """
        self.buffers.load(inputs, size, gumbel_params)
        self.recorded[size, self.lora.load(inputs.metadata.lora)].replay()
        return self.outputs.first(size)


def bytes_of_graphs(
    model: DecoderForCausalLM, backend: type[AttentionBackend], sizes: list[int], *, max_model_len: int,
    block_size: int, dtype: torch.dtype, device: torch.device, draws: bool, cache_dtype: torch.dtype | None = None,
    prompt_shapes: Sequence[PromptShape] = (), groups: KVCacheGroups | None = None,
) -> int:  # fmt: skip
    """Device memory that CudaGraphs of all these sizes will take, before there is a cache. cache_dtype: of the cache
    that there will be; None: dtype. groups: of its layers; None: one.

    The two largest of each kind are recorded over a cache of the null block alone, and thrown away. The pool of the
    largest serves the others, so each of them is taken to need what the second does beside it: its list of launches,
    and some memory where attention is split into more parts than for the largest.

    vLLM: v1/worker/gpu_model_runner.py (profile_cudagraph_memory)
    """
    others = 0

    def record() -> CudaGraphs:
        nonlocal others
        graphs = CudaGraphs(
            model, sizes[-2:], max_model_len=max_model_len, block_size=block_size, dtype=dtype, device=device,
            draws=draws, prompt_shapes=prompt_shapes[-2:],
        )  # fmt: skip
        others = (len(sizes) - len(graphs.sizes)) * graphs.graph_bytes[graphs.sizes[0]]
        if recorded := graphs.prompts.graph_bytes:
            others += (len(prompt_shapes) - len(recorded)) * min(recorded.values())
        return graphs

    taken = bytes_over_null_block(
        model, backend, record, block_size=block_size, dtype=cache_dtype or dtype, device=device, groups=groups
    )
    return taken + others


def bytes_over_null_block(
    model: DecoderForCausalLM, backend: type[AttentionBackend], record: Callable[[], object], *, block_size: int,
    dtype: torch.dtype, device: torch.device, groups: KVCacheGroups | None = None,
) -> int:  # fmt: skip
    """Device memory that what `record` makes takes, over a cache of the null block alone. It is thrown away."""
    torch.cuda.empty_cache()
    free_before = torch.cuda.mem_get_info(device)[0]
    cache = KVCache(model, backend, num_blocks=1, block_size=block_size, dtype=dtype, device=device, groups=groups)
    cache_bytes = cache.num_bytes
    made = record()
    taken = free_before - torch.cuda.mem_get_info(device)[0] - cache_bytes
    del made, cache
    for layer in model.attention_layers:
        layer.kv_cache = None
    torch.cuda.empty_cache()
    return taken
