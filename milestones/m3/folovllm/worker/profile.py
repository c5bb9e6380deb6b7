"""How much memory a full-size step takes beyond the weights: run one and look at the allocator's high-water mark.

The largest step has max_num_batched_tokens tokens, in sequences as long as they may be, and max_num_seqs rows of
logits, from which the sampler draws in the ways that take most.

vLLM: v1/worker/gpu_model_runner.py (profile_run)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.config import SchedulerConfig
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow
from folovllm.sample.sampler import Sampler
from folovllm.sampling_params import SamplingParams
from folovllm.worker.kv_cache import KVCache

# A draw holds several numbers of 32 or 64 bits for each logit at a time: an edited copy, weights, noise, what is kept.
HUNGRY = [
    SamplingParams(repetition_penalty=1.1, logprobs=1),
    SamplingParams(repetition_penalty=1.1, logprobs=1, top_p=0.9),
    SamplingParams(repetition_penalty=1.1, logprobs=1, logprobs_mode="processed"),
]


def peak_bytes(run: Callable[[], int], device: torch.device) -> int:
    """Bytes of a CUDA device that `run` takes at its most, without those that it says were a cache's."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    cache_bytes = run()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before - cache_bytes
    torch.cuda.empty_cache()
    return peak


@torch.inference_mode()
def run_full_step(
    model: DecoderForCausalLM,
    backend: type[AttentionBackend],
    block_size: int,
    limits: SchedulerConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """One prefill of the largest size. Returns the bytes of its cache, just large enough, which is gone after it."""
    num_tokens, longest = limits.max_num_batched_tokens, limits.max_model_len
    seq_lens = [longest] * (num_tokens // longest) + [num_tokens % longest] * (num_tokens % longest > 0)
    blocks_each = -(-min(longest, num_tokens) // block_size)
    cache = KVCache(
        model, backend, num_blocks=1 + blocks_each * len(seq_lens), block_size=block_size, dtype=dtype, device=device
    )
    # Sequence i owns the blocks from 1 + i * blocks_each on.
    tables = 1 + torch.arange(len(seq_lens) * blocks_each, dtype=torch.int32).view(len(seq_lens), -1)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    seqs, positions = (torch.arange(max(seq_lens)) < lengths[:, None]).nonzero().unbind(1)
    slots = tables[seqs, positions // block_size].long() * block_size + positions % block_size
    starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    arrays = torch.zeros_like(positions), positions, starts, lengths, slots, tables
    beside = [array.to(device, copy=True) for array in arrays]  # of the step before, perhaps not collected yet
    input_ids, positions, starts, lengths, slots, tables = (array.to(device) for array in arrays)
    metadata = AttentionMetadata(starts, lengths, slots, tables, max(seq_lens), max(seq_lens))
    hidden = model(input_ids, positions, metadata)
    logits = model.compute_logits(hidden[: min(limits.max_num_seqs, num_tokens)])
    for params in HUNGRY:
        rows = [SamplingRow(params, [0], [0], frozenset(), None) for _ in range(len(logits))]
        Sampler()(logits, SamplingMetadata.build(rows, logits.shape[-1], device))
    del beside
    num_bytes = cache.num_bytes
    for layer in model.attention_layers:
        layer.kv_cache = None
    return num_bytes
