"""What a step costs by the number of its tokens, measured when the engine starts: guesses are worth it where a token
more costs little.

vLLM: none
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from folovllm.attention.metadata import AttentionMetadata
from folovllm.core.draft_length import StepCosts
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.request import Sequence, SequenceData
from folovllm.sampling_params import SamplingParams
from folovllm.worker.cuda_graph import CudaGraphs
from folovllm.worker.proposer import Proposer

ROWS = (1, 2, 4, 8, 16, 32, 64)
RUNS = 3
GUESSES = 2


@torch.inference_mode()
def measure_step_costs(
    model: DecoderForCausalLM,
    proposer: Proposer,
    most_rows: int,
    device: torch.device,
    graphs: CudaGraphs | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> StepCosts:
    """The quickest of a few runs for each number of rows up to `most_rows`, replayed where there are graphs of so many.
    All tokens lie in the null block.

    Short sequences are measured: a long one costs more with guesses and without, since its keys and values are read
    once for a run of tokens; in a CUDA graph once for each of them.
    """
    rows = [count for count in ROWS if count <= most_rows]

    def step(count: int) -> None:
        if graphs is not None and (size := graphs.size_for(count)) is not None:
            graphs.buffers.clear(size)
            graphs.recorded[size].replay()
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
        [seconds(lambda count=count: _guess(proposer, count)) / GUESSES for count in rows],  # type: ignore[misc]
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


def _guess(proposer: Proposer, count: int) -> None:
    """GUESSES for each of so many sequences, of one token each. Whatever it writes, it writes to the null block."""
    seqs = [
        Sequence(f"cost-{number}", "cost", SequenceData([0]), SamplingParams(), block_ids=[0, 0, 0])
        for number in range(count)
    ]
    proposer.propose(seqs, [GUESSES] * count)
    for seq in seqs:
        proposer.forget(seq.seq_id)
