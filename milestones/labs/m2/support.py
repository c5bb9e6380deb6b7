"""Shared by M2's judges: a scheduler without an engine, and requests of a given length."""

from folovllm.config import SchedulerConfig
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams

EOS = 2


def make_scheduler(tokens=16, seqs=4, policy="fcfs"):
    """tokens, seqs: the budgets of a step; there are as many slots as sequences."""
    config = SchedulerConfig(tokens, seqs, max_model_len=tokens, policy=policy)
    return Scheduler(config, num_slots=seqs, eos_token_ids=frozenset([EOS]))


def request(name, num_tokens=3, n=1, max_tokens=8):
    """A prompt of `num_tokens` tokens, to be answered `n` times."""
    return Request(name, None, [7] * num_tokens, SamplingParams(n=n, max_tokens=max_tokens))


def running(scheduler, made):
    """Put the first sequence of a request among the running ones by hand, its prompt computed, one token drawn."""
    seq = made.get_seqs()[0]
    seq.block_ids = [scheduler.free_slots.pop(0)]
    seq.status = SequenceStatus.RUNNING
    seq.num_computed_tokens = seq.get_len()
    seq.data.output_token_ids.append(7)
    scheduler.running.append(made)
    scheduler.num_running_seqs += 1
    return seq


def work(output):
    """What a step computes: (sequence, how many tokens)."""
    return [(seq.seq_id, n) for seq, n in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)]
