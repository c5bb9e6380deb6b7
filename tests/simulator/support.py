"""Small simulated engines, and costs that can be summed by hand."""

from __future__ import annotations

from folovllm.config import SchedulerConfig
from folovllm.simulator.cost_model import CostModel, Linear
from folovllm.simulator.load import Job
from folovllm.simulator.meter import Meter
from folovllm.simulator.replica import Setup
from folovllm.simulator.simulator import Simulator

SECOND_A_STEP = Linear(1.0, 0.0, 0.0, 0.0, 0.0)


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
    return Setup(config, blocks, block_size, 0, caching)


def simulate(
    jobs: list[Job], made: Setup | None = None, cost: CostModel = SECOND_A_STEP, **options: object
) -> tuple[Simulator, Meter, float]:
    meter = Meter()
    simulator = Simulator(made or setup(), cost, meter, **options)  # type: ignore[arg-type]
    return simulator, meter, simulator.run(jobs)
