"""The sampler as a whole: greedy rows, and only the work that a row asks for."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from folovllm import SamplingParams
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.sampler import Sampler
from tests.m1.sampling_reference import CPU, make_row, sample

GREEDY = SamplingParams(temperature=0)


class OperatorLog(TorchDispatchMode):
    """Writes down each ATen operator that runs, and how many elements it allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, (tuple, list)) else out
        is_view = func._schema.returns and any(r.alias_info is not None for r in func._schema.returns)
        size = first.numel() if isinstance(first, torch.Tensor) and not is_view else 0
        self.calls.append((func.overloadpacket.__name__, size))
        return out

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.calls}


def logits_of(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def run_logged(logits: torch.Tensor, params: list[SamplingParams]) -> OperatorLog:
    metadata = SamplingMetadata.build([make_row(p) for p in params], logits.shape[-1], CPU)
    with OperatorLog() as log:
        Sampler()(logits, metadata)
    return log


@pytest.mark.parametrize("vocab_size", [1, 50, 16_384, 50_257, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_is_the_first_of_the_largest_logits(vocab_size: int, dtype: torch.dtype) -> None:
    logits = logits_of(4, vocab_size).to(dtype)
    ties = logits_of(4, vocab_size).round().to(dtype)
    for x in (logits, ties):
        first = [row.index(max(row)) for row in x.tolist()]
        assert sample(x, [make_row(GREEDY)] * 4).token_ids.tolist() == first


def test_greedy_finds_the_largest_wherever_it_stands() -> None:
    vocab_size = 20_001
    places = [0, 127, 128, 19_967, 19_968, 20_000]
    logits = torch.zeros(len(places), vocab_size)
    logits[range(len(places)), places] = 1.0
    for dtype in (torch.float32, torch.bfloat16):
        assert sample(logits.to(dtype), [make_row(GREEDY)] * len(places)).token_ids.tolist() == places


@pytest.mark.parametrize("vocab_size", [1000, 50_257])
def test_an_all_greedy_batch_does_nothing_but_argmax_and_look_at_what_it_found(vocab_size: int) -> None:
    log = run_logged(logits_of(5, vocab_size), [GREEDY] * 5)
    assert not log.names & {"sort", "topk", "exp", "exp_", "_softmax", "_log_softmax", "cumsum", "rand", "sum"}
    assert max(size for _, size in log.calls) <= 5


def test_top_k_never_allocates_in_the_size_of_the_vocabulary() -> None:
    logits = logits_of(4, 50_257)
    log = run_logged(logits, [SamplingParams(top_k=40, top_p=0.9, min_p=0.01)] * 4)
    assert "topk" in log.names
    assert not log.names & {"sort", "scatter", "scatter_"}
    assert max(size for _, size in log.calls) < logits.numel() / 4


def test_temperature_alone_never_sorts() -> None:
    assert not run_logged(logits_of(2, 50_257), [SamplingParams()] * 2).names & {"sort", "topk"}


def test_logprobs_cost_nothing_when_nobody_asks() -> None:
    for params in (SamplingParams(), GREEDY):
        assert "_log_softmax" not in run_logged(logits_of(2, 500), [params] * 2).names
    assert "_log_softmax" in run_logged(logits_of(2, 500), [SamplingParams(logprobs=1)] * 2).names


def test_edits_that_are_over_copy_no_logits() -> None:
    """min_tokens is reached: nothing is masked any more, so the model's own logits are used as they are."""
    row = make_row(SamplingParams(temperature=0, min_tokens=2), output=[1, 1], eos=[3])
    metadata = SamplingMetadata.build([row], 500, CPU)
    with OperatorLog() as log:
        Sampler()(logits_of(1, 500), metadata)
    assert "_to_copy" not in log.names


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 9.9e-6])
def test_a_row_that_is_nearly_greedy_is_exactly_so(temperature: float) -> None:
    logits = logits_of(3, 300)
    rows = [make_row(SamplingParams(temperature=temperature))] * 3
    assert sample(logits, rows).token_ids.tolist() == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_models_logits_are_not_written_to(dtype: torch.dtype) -> None:
    settings = [
        GREEDY,
        SamplingParams(presence_penalty=1.0, logit_bias={3: 1.0}, logprobs=2),
        SamplingParams(top_p=0.9, allowed_token_ids=[1, 2]),
        SamplingParams(min_p=0.1, logprobs=1, logprobs_mode="processed"),
    ]
    logits = logits_of(4, 2000).to(dtype)
    before = logits.clone()
    for params in settings:
        sample(logits, [make_row(params, prompt=[1, 2], output=[5])] * 4)
        assert torch.equal(logits, before)
