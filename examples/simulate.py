"""How many requests a second can one H100 serve, if nine in ten must see their first token within 200 ms?

Llama-3.1-8B, prompts of 2,000 to 6,000 tokens. No GPU and no weights are needed. Run it: python examples/simulate.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import percentile
from folovllm.bench.shapes import ModelShape
from folovllm.config import SchedulerConfig
from folovllm.simulator.cost_model import Roofline
from folovllm.simulator.devices import find_device
from folovllm.simulator.load import LOADS
from folovllm.simulator.replica import Setup
from folovllm.simulator.simulator import Simulator

COST = Roofline(find_device("h100"), ModelShape.of("llama-3.1-8b"))
CONFIG = SchedulerConfig(
    max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=16_384, enable_chunked_prefill=True
)
GOAL_MS = 200


def run(rate: float) -> tuple[float, float]:
    """(TTFT in ms that nine in ten do not exceed, sequences that run in the mean)."""
    simulator = Simulator(Setup(CONFIG, COST.num_blocks(block_size=16)), COST)
    times = simulator.run(LOADS["documents"].jobs(300, Arrivals(rate), seed=0))
    replica = simulator.replicas["replica-0"]
    return percentile([each.ttft for each in times], 90) * 1e3, replica.rows / replica.steps


if __name__ == "__main__":
    for rate in (1, 2, 4, 6, 8, 10):
        ttft, running = run(rate)
        verdict = "" if ttft <= GOAL_MS else "   too slow"
        print(f"{rate:2} requests/s: TTFT p90 {ttft:6.0f} ms, {running:4.1f} run{verdict}")
