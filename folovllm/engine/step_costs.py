"""What a step costs, measured when an engine with draft tokens starts: the model's part and the host's.

    the model             1, 2, 4 … tokens: draft tokens pay where one token more costs little
    step of 1 sequence    model + fixed +      per_token       the same for 16, and two unknowns are found
    step of 16 sequences  model + fixed + 16 * per_token
    with draft tokens     all of them wrong: what is more than the model's part is the price of proposing

With a small model the host's part is the larger one. Draft tokens save it, and without it they would seem not to pay.

vLLM: none
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.core.draft_length import DraftLength, HostCosts, StepCosts
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.engine.core import EngineCore
from folovllm.engine.output_processor import OutputProcessor
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Request, Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.spec_decode.ngram import NgramProposer
from folovllm.worker.cuda_graph import CudaGraphs
from folovllm.worker.proposer import Proposer

ROWS = (1, 2, 4, 8, 16, 32, 64)
RUNS = 3
DRAFTED = 2
STEPS, MANY = 12, 16
LONG = 0.02  # seconds of a model's step, beside which the host's are nothing


@torch.inference_mode()
def measure_step_costs(
    model: DecoderForCausalLM, proposer: Proposer, most_rows: int, device: torch.device,
    graphs: CudaGraphs | None = None, clock: Callable[[], float] = time.perf_counter,
) -> StepCosts:  # fmt: skip
    """The quickest of a few runs for each number of rows up to `most_rows`, replayed where there are graphs of so many.
    All tokens are in the null block.

    Short sequences are measured: a long one costs more with draft tokens and without, since its keys and values are
    read once for a run of tokens.
    """
    rows = [count for count in ROWS if count <= most_rows]

    def step(count: int) -> None:
        if graphs is not None and (size := graphs.size_for(count)) is not None:
            graphs.replay_empty(size)
        else:
            _step(model, count, device)

    def seconds(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(RUNS):
            began = clock()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(clock() - began)
        return min(taken)

    return StepCosts(
        rows,
        [seconds(lambda count=count: step(count)) for count in rows],  # type: ignore[misc]
        [seconds(lambda count=count: _propose(proposer, count)) / DRAFTED for count in rows],  # type: ignore[misc]
    )


def _step(model: DecoderForCausalLM, count: int, device: torch.device) -> None:
    ones = torch.ones(count, dtype=torch.int32, device=device)
    metadata = AttentionMetadata(
        query_start_loc=torch.arange(count + 1, dtype=torch.int32, device=device),
        seq_lens=ones,
        slot_mapping=torch.zeros(count, dtype=torch.int64, device=device),
        block_tables=torch.zeros(count, 1, dtype=torch.int32, device=device),
        max_query_len=1,
        max_seq_len=1,
        num_decodes=count,
        decode_order=torch.arange(count, dtype=torch.int32, device=device),
    )
    tokens = torch.zeros(count, dtype=torch.int64, device=device)
    model.compute_logits(model(tokens, tokens, metadata)).argmax(dim=-1)


def _propose(proposer: Proposer, count: int) -> None:
    """DRAFTED tokens for each of so many sequences of one token. What it writes, it writes to the null block."""
    seqs = [
        Sequence(f"cost-{number}", "cost", SequenceData([0]), SamplingParams(), block_ids=[0, 0, 0])
        for number in range(count)
    ]
    proposer.propose(seqs, [DRAFTED] * count)
    for seq in seqs:
        proposer.forget(seq.seq_id)


class WrongProposer(NgramProposer):
    """Proposes at once, and hardly ever what comes."""

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        return [[0] * count for count in counts]


def measure_host_costs(core: EngineCore, costs: StepCosts, clock: Callable[[], float] = time.perf_counter) -> HostCosts:
    """By real steps of an engine core that shares the model and the cache's memory with `core`, which has not begun."""
    longest, size = 2 * STEPS + 4, core.cache_size
    most = min(MANY, core.scheduler.max_num_seqs, size.num_blocks // size.groups.most_blocks(longest))
    if costs.seconds[0] > LONG or most < 2 or core.scheduler.max_model_len < longest:
        return HostCosts()
    plain, wrong = _core_beside(core, None), _core_beside(core, WrongProposer(1, 1))
    one, many = (_quickest_step(plain, count, clock) - costs.seconds_for(count) for count in (1, most))
    one_more, many_more = (
        _quickest_step(wrong, count, clock) - costs.seconds_for(2 * count) - without
        for count, without in ((1, one), (most, many))
    )
    return HostCosts(*_line(one, many, most), *_line(one_more, many_more, most), hidden=core.run_ahead)


def _core_beside(core: EngineCore, proposer: Proposer | None) -> EngineCore:
    """With a scheduler, a cache manager and a batch of its own: nothing of what it does is known to `core`."""
    runner, size, limits = core.runner, core.cache_size, core.config.scheduler_config
    kv = KVCacheManager(size.num_blocks, size.block_size, groups=size.groups)
    scheduler = Scheduler(limits, kv, frozenset(), None if proposer is None else DraftLength(1, None))
    beside = type(runner)(
        runner.model, runner.kv_cache, runner.sampling, runner.graphs, num_swap_blocks=0, proposer=proposer,
        max_num_seqs=limits.max_num_seqs, max_model_len=scheduler.max_model_len, device=runner.device,
        group=runner.group,
    )  # fmt: skip
    return EngineCore(scheduler, beside, core.config, size)


def _quickest_step(core: EngineCore, count: int, clock: Callable[[], float]) -> float:
    params = SamplingParams(temperature=0, max_tokens=2 * STEPS + 2, ignore_eos=True)
    requests = {name: Request(name, None, [0], params) for name in (f"cost-{number}" for number in range(count))}
    outputs = OutputProcessor(None, frozenset(), core.scheduler.max_model_len)
    for request in requests.values():
        outputs.begin(request)
        core.scheduler.add_request(request)
    seconds = []
    for _ in range(STEPS):
        began = clock()
        scheduled, output, gained = core.step()
        core.apply(outputs.process_outputs(requests, scheduled.rows, output, gained)[2])
        seconds.append(clock() - began)
    for request in requests.values():
        core.scheduler.abort(request)
    core.step()  # the worker forgets them
    return min(seconds[1:])  # the first one computes the prompts


def _line(one: float, many: float, count: int) -> tuple[float, float]:
    """What is there in any case, and what comes with each of so many. Neither is negative: that would be noise."""
    each = max(0.0, many - one) / (count - 1)
    return max(0.0, one - each), each
