"""Rows that ask for different things, sampled in one batch: each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from folovllm import SamplingParams
from folovllm.sample import logits_processors
from folovllm.sample.draw import NO_TOKEN, NOT_FINITE
from folovllm.sample.groups import group_rows, sample_groups
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.sample.row import SamplingRow
from folovllm.sample.sampler import Sampler, SamplerOutput
from tests.m1.sampling_reference import CPU, make_row
from tests.m1.test_sampler import GREEDY, logits_of
from tests.m1.test_sampling_logprobs import VOCAB as FEW
from tests.m1.test_sampling_logprobs import exact
from tests.m1.test_sampling_seeds import STEPS, VOCAB, WAYS, step_logits


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow], draw: str = "auto") -> SamplerOutput:
    return sample_groups(Sampler(draw), logits, group_rows(rows, logits.shape[-1], CPU))


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(4, FEW, generator=torch.Generator().manual_seed(0)) * 3


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[LogitsProcessor]]:
    registry: dict[str, type[LogitsProcessor]] = {}
    monkeypatch.setattr(logits_processors, "_REGISTRY", registry)
    return registry


def test_each_row_of_a_mixed_batch_obeys_its_own_settings() -> None:
    vocab_size = 3000
    settings = [
        GREEDY,
        SamplingParams(top_k=3),
        SamplingParams(top_p=1e-6),
        SamplingParams(min_p=1.0),
        SamplingParams(allowed_token_ids=[7, 9]),
        SamplingParams(top_k=500, top_p=1e-6),
        SamplingParams(),
        GREEDY,
    ]
    logits = logits_of(len(settings), vocab_size)
    best = logits.argsort(dim=-1, descending=True)
    rows = [make_row(p) for p in settings]
    for _ in range(30):
        tokens = sample(logits, rows).token_ids
        assert all(tokens[i] == best[i, 0] for i in (0, 2, 3, 5, 7))
        assert tokens[1] in best[1, :3]
        assert int(tokens[4]) in (7, 9)


def test_raw_and_processed_rows_share_a_batch(logits: torch.Tensor) -> None:
    settings = [{"logprobs_mode": "processed"}, {"logprobs_mode": "raw"}] * 2
    rows = [make_row(SamplingParams(top_k=1, logprobs=1, **kw)) for kw in settings]
    output = sample(logits, rows)
    assert output.logprobs is not None
    assert output.logprobs.logprobs[::2, 0].tolist() == [0.0, 0.0]  # the only token left
    np.testing.assert_allclose(output.logprobs.logprobs[1::2, 0], exact(logits).max(axis=-1)[1::2], atol=1e-5)


def test_a_custom_processor_sees_only_the_rows_that_ask_for_it(registry: dict) -> None:
    seen: list[tuple[int, list[int]]] = []

    @register_logits_processor("force")
    class Force(LogitsProcessor):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            seen.append((len(logits), [row.params.extra_args["force"] for row in self.rows]))
            for position, row in enumerate(self.rows):
                logits[position, row.params.extra_args["force"]] = 50.0
            return logits

    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0]]).repeat(4, 1)
    settings = [{"force": 2}, None, {"force": 3}, None]
    rows = [make_row(SamplingParams(temperature=0, extra_args=extra)) for extra in settings]
    rows[3] = make_row(SamplingParams(temperature=0, logit_bias={1: 90.0}))
    assert sample(logits, rows).token_ids.tolist() == [2, 0, 3, 1]
    assert seen == [(2, [2, 3])]


@pytest.mark.parametrize("path", [{}, {"temperature": 0}, {"top_k": 20}, {"top_p": 0.7}, {"min_p": 0.01}], ids=str)
def test_a_row_that_cannot_be_drawn_from_leaves_its_neighbours_as_they_are(path: dict) -> None:
    logits = torch.zeros(4, 5000)
    logits[:, 1] = 1.0
    logits[2, 9] = torch.nan
    nothing = SamplingParams(**path, logit_bias={1: 3.4e38}, repetition_penalty=0.5)
    rows = [make_row(p, prompt=[1]) for p in (GREEDY, nothing, SamplingParams(**path), SamplingParams(top_k=1))]
    assert sample(logits, rows).token_ids.tolist() == [1, NO_TOKEN, NOT_FINITE, 1]


def run(
    rows: list[SamplingRow],
    draw: str,
    steps: int = STEPS,
    scale: float = 2.0,
    dtype: torch.dtype = torch.float32,
) -> list[list[int]]:
    """Each row sees the same logits at its own k-th step, whoever else is in the batch."""
    sampler, groups = Sampler(draw), group_rows(rows, VOCAB, CPU)
    for _ in range(steps):
        logits = torch.stack([step_logits(len(row.output_token_ids), scale) for row in rows])
        for row, token_id in zip(
            rows, sample_groups(sampler, logits.to(dtype), groups).token_ids.tolist(), strict=True
        ):
            row.output_token_ids.append(token_id)
    return [row.output_token_ids for row in rows]


def crowd() -> list[SamplingRow]:
    """Neighbours that take every path, seeded and not, and need a wider look."""
    others = [*WAYS.values(), {"temperature": 0.0}, {"top_p": 0.999, "temperature": 3.0}, {"logprobs": 5}]
    return [make_row(SamplingParams(max_tokens=99, **kw)) for kw in others] + [
        make_row(SamplingParams(max_tokens=99, seed=i, **kw)) for i, kw in enumerate(others[:3])
    ]


@pytest.mark.parametrize("draw", ["inverse_cdf", "exponential_race"])
@pytest.mark.parametrize("way", WAYS)
def test_a_seed_gives_the_same_tokens_alone_and_among_others(way: str, draw: str) -> None:
    params = SamplingParams(seed=42, max_tokens=99, **WAYS[way])
    (alone,) = run([make_row(params)], draw)
    neighbours = crowd()
    first, *_, last = run([make_row(params), *neighbours, make_row(params)], draw)
    assert first == alone
    assert last == alone


def test_a_seed_gives_the_same_tokens_where_only_some_rows_need_a_wider_look() -> None:
    params = SamplingParams(seed=42, top_p=0.8)
    (alone,) = run([make_row(params)], "auto", scale=0.3)  # flat: 1,024 of 2,500 tokens do not reach 0.8
    among = run([make_row(SamplingParams(top_p=0.1)), make_row(params), *crowd()], "auto", scale=0.3)
    assert among[1] == alone


@pytest.mark.parametrize("way", WAYS)
def test_a_seed_gives_the_same_tokens_among_others_where_many_logits_are_equal(way: str) -> None:
    """bfloat16 has few different logits: which of the equal ones come first must not depend on the neighbours."""
    params = SamplingParams(seed=42, max_tokens=99, **WAYS[way])
    (alone,) = run([make_row(params)], "auto", dtype=torch.bfloat16)
    assert run([*crowd(), make_row(params)], "auto", dtype=torch.bfloat16)[-1] == alone
