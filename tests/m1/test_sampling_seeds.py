"""Seeds: the same tokens each time, another number at each step, nothing leaked into unseeded rows."""

from __future__ import annotations

import pytest
import torch

from folovllm import SamplingParams
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.row import SamplingRow, make_generator
from folovllm.sample.sampler import Sampler
from tests.m1.sampling_reference import CPU, make_row

VOCAB = 2500
STEPS = 12
WAYS = {
    "temperature": {},
    "top_k": {"top_k": 40, "top_p": 0.95},
    "large top_k": {"top_k": 300},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "top_k": 64},
    "masks": {"min_tokens": 5, "logit_bias": {7: 3.0}},
}


def step_logits(step: int, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(step)) * scale


def run(
    rows: list[SamplingRow],
    draw: str,
    steps: int = STEPS,
    scale: float = 2.0,
    dtype: torch.dtype = torch.float32,
) -> list[list[int]]:
    """Rows of one way: each sees the same logits at its own k-th step."""
    sampler, metadata = Sampler(draw), SamplingMetadata.build(rows, VOCAB, CPU)
    for _ in range(steps):
        logits = torch.stack([step_logits(len(row.output_token_ids), scale) for row in rows])
        for row, token_id in zip(rows, sampler(logits.to(dtype), metadata).token_ids.tolist(), strict=True):
            row.output_token_ids.append(token_id)
    return [row.output_token_ids for row in rows]


def test_a_seeded_row_draws_another_number_at_each_step() -> None:
    row = make_row(SamplingParams(seed=7))
    metadata = SamplingMetadata.build([row], VOCAB, CPU)
    logits = torch.zeros(1, VOCAB)
    assert len({int(Sampler()(logits, metadata).token_ids) for _ in range(20)}) > 15


@pytest.mark.parametrize("way", WAYS)
def test_the_generator_advances_once_per_token(way: str) -> None:
    row = make_row(SamplingParams(seed=3, max_tokens=99, **WAYS[way]))
    run([row], "auto", steps=6)
    expected = torch.Generator().manual_seed(3)
    for _ in range(6):
        torch.rand((), dtype=torch.float64, generator=expected)
    assert row.generator is not None
    assert torch.equal(row.generator.get_state(), expected.get_state())


def test_seeded_rows_leave_the_shared_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for way in WAYS.values():
        run([make_row(SamplingParams(seed=1, **way))] * 2, "auto", steps=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_of_one_seed_are_equal_and_sequences_of_one_request_differ() -> None:
    params = SamplingParams(seed=10, n=2)
    first, again, second = make_row(params), make_row(params), make_row(params)
    second.generator = make_generator(params, 1, CPU)
    a, b, c = run([first, again, second], "auto")
    assert a == b
    assert a != c
    (next_seed,) = run([make_row(SamplingParams(seed=11))], "auto")
    assert c == next_seed


def test_an_unseeded_request_has_no_generator() -> None:
    assert make_generator(SamplingParams(), 0, CPU) is None
