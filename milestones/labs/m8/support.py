"""Shared by M8's judges: a scheduler, with blocks of 4 tokens as a rule, and a sequence that runs in it."""

from folovllm.config import SchedulerConfig
from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams

TOKEN = 7  # what every sequence says


def make_scheduler(guesses=4, num_blocks=8, block_size=4):
    config = SchedulerConfig(64, 8, max_model_len=64, enable_chunked_prefill=True)
    kv = KVCacheManager(num_blocks, block_size=block_size)
    return Scheduler(config, kv, frozenset(), DraftLength(guesses, None))


def running(scheduler, name, num_tokens, num_computed):
    """A sequence that runs: a prompt, the last token drawn; `num_computed` tokens are in the cache."""
    request = Request(name, None, [TOKEN] * (num_tokens - 1), SamplingParams(max_tokens=32))
    seq = request.get_seqs()[0]
    seq.add_token_id(TOKEN)
    scheduler.add_request(request)
    scheduler.waiting.remove(request)
    scheduler.kv.allocate_slots([(seq, num_computed)])
    seq.num_computed_tokens = num_computed
    seq.status = SequenceStatus.RUNNING
    scheduler.running.append(request)
    return seq
