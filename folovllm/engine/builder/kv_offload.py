"""The tiers behind the block pool, and what a folder of blocks belongs to.

Keys and values of two engines are the same if they compute the same bits from the same weights. So the identity is made
of the keys and values that this engine computes for one block, of its weights and its layout: neither of a name, which
may mean other weights tomorrow, nor of how many tokens a step may have.

vLLM: v1/kv_offload/factory.py, file_mapper.py
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from folovllm.config import EngineConfig
from folovllm.core.kv_offload import OffloadingManager
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.model_loader.model_files import weight_files
from folovllm.models.weights import weights_folder
from folovllm.pooling_params import PoolingParams
from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import wrong
from folovllm.utils.memory import GIB
from folovllm.worker.fs_tier import FileSystemTier
from folovllm.worker.memory import CacheSize
from folovllm.worker.model_runner import ModelRunner


def make_offload(config: EngineConfig, runner: ModelRunner, size: CacheSize) -> OffloadingManager | None:
    """None: a block that the pool evicts is gone.

    Raises:
        ValueError: kv_offloading_path cannot be written to.
    """
    cache, tier = config.cache_config, None
    if not size.num_offload_blocks:
        return None
    if cache.kv_offloading_path is not None:
        speculation = runner.speculation
        draft = None if speculation is None else getattr(speculation.proposer, "mover", None)
        movers = [runner.mover, *([] if draft is None else [draft])]
        limit = int(cache.kv_offloading_path_size * GIB)
        try:
            longest = min(config.model_config.max_model_len, size.num_tokens)
            tier = FileSystemTier(Path(cache.kv_offloading_path), identity(config, runner, longest), movers, limit)
        except OSError as error:
            name = cache.kv_offloading_path
            raise wrong("kv_offloading_path", "be a folder that can be written to", name, str(error)) from None
    return OffloadingManager(size.num_swap_blocks, size.num_offload_blocks, tier)


def identity(config: EngineConfig, runner: ModelRunner, longest: int) -> bytes:
    """Of what computes keys and values; takes a step of one block, and reads all weights once. longest: how many tokens
    a sequence may have."""
    model, tensors, groups = config.model_config, runner.kv_cache.tensors, runner.kv_cache.groups
    layout = [groups.windows, groups.layers, *((str(tensor.dtype), tensor.shape[2:]) for tensor in tensors)]
    asked = [model.quantization, model.batch_invariant, model.hf_overrides, model.model_impl]
    digest = hashlib.sha256(repr([layout, asked]).encode())
    for tensor in _probe(runner, longest):
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
    if model.load_format == "dummy":
        return digest.digest()
    for path in weight_files(weights_folder(model.model)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()


def _probe(runner: ModelRunner, longest: int) -> list[torch.Tensor]:
    """The keys and values of a block's tokens, computed by themselves. One place is left for the token that is drawn
    behind them."""
    num_groups = len(runner.kv_cache.groups.windows)
    num_tokens = max(1, min(runner.kv_cache.block_size, longest - 1))
    token_ids = [(7 + 97 * place) % runner.vocab_size for place in range(num_tokens)]
    seq = Sequence("probe-0", "probe", SequenceData(token_ids), SamplingParams(temperature=0.0, max_tokens=1))
    seq.pooling_params = PoolingParams(use_activation=False)  # of a model that pools
    seq.block_ids, *seq.further_tables = ([group + 1] for group in range(num_groups))
    scheduled = SchedulerOutput(grown_seqs=[seq])
    scheduled.add(seq, num_tokens)
    for output in (scheduled, SchedulerOutput(finished_seq_ids=["probe-0"])):
        runner.execute_model(output).get_output()
    return [tensor[:, 1 : num_groups + 1] for tensor in runner.kv_cache.tensors]
