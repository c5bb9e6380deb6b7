"""Shared by M8's judges: a scheduler, with blocks of 4 tokens as a rule, and a sequence that runs in it; a head's books
without a head."""

from types import SimpleNamespace

import torch

from folovllm.config import SchedulerConfig
from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request, Sequence, SequenceData, SequenceStatus
from folovllm.sampling_params import SamplingParams
from folovllm.spec_decode.eagle import EagleProposer

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


class Books(EagleProposer):
    """Keeps hidden states of two numbers, and notes who has to catch up."""

    def __init__(self, dtype=torch.float32):
        self.head = SimpleNamespace(decoder_spec=SimpleNamespace(hidden_size=2))
        self.device, self.dtype, self._held = torch.device("cpu"), dtype, {}
        self.caught_up, self.calls = [], 0

    def keep(self, name, held, positions):
        """So many tokens have keys; kept are the hidden states of these positions."""
        self._held[name] = held, states(*positions).to(self.dtype)

    def kept(self, name):
        """How many tokens have keys, and the positions of the hidden states that are kept."""
        held, rows = self._held[name]
        return held, positions_of(rows)

    def _catch_up(self, ends):
        self.calls += 1
        self.caught_up += [(seq.seq_id, end) for seq, end in ends]


def states(*positions):
    """A hidden state of a position p is (p, -p); of none it is zeros."""
    return torch.tensor([[0.0, 0.0] if p is None else [float(p), -float(p)] for p in positions]).view(-1, 2)


def positions_of(rows):
    return [None if row == [0, 0] else int(row[0]) for row in rows.tolist()]


def text(name, prompt, output=(), num_computed=0):
    """A sequence of these tokens."""
    data = SequenceData(list(prompt), list(output))
    seq = Sequence(name, name, data, SamplingParams(max_tokens=32))
    seq.num_computed_tokens = num_computed
    return seq
