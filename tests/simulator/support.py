"""Small simulated engines, and costs that can be summed by hand."""

from __future__ import annotations

from dataclasses import dataclass

from folovllm.bench.metrics import RequestTimes
from folovllm.config import SchedulerConfig
from folovllm.simulator.cost_model import CostModel
from folovllm.simulator.load import Job
from folovllm.simulator.replica import Setup
from folovllm.simulator.simulator import Simulator


@dataclass(frozen=True)
class Linear:
    """Seconds of a step, and of each thing in it."""

    step: float
    token: float = 0.0
    seq: float = 0.0
    kv_token: float = 0.0

    def seconds(self, tokens: int, seqs: int, kv_tokens: int, pairs: int) -> float:
        return self.step + tokens * self.token + seqs * self.seq + kv_tokens * self.kv_token


SECOND_A_STEP = Linear(1.0)


def setup(
    *,
    blocks: int = 200,
    budget: int = 64,
    rows: int = 8,
    block_size: int = 4,
    caching: bool = True,
    policy: str = "fcfs",
) -> Setup:
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=rows,
        max_model_len=min(512, blocks * block_size),
        enable_chunked_prefill=True,
        policy=policy,  # type: ignore[arg-type]
    )
    return Setup(config, blocks, block_size, caching)


def simulate(
    jobs: list[Job], made: Setup | None = None, cost: CostModel = SECOND_A_STEP, **options: object
) -> tuple[Simulator, list[RequestTimes]]:
    simulator = Simulator(made or setup(), cost, **options)  # type: ignore[arg-type]
    return simulator, simulator.run(jobs)
