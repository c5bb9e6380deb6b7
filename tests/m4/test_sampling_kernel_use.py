"""Who draws with the sampling kernel, in the sampler, the engine and the benchmark, and who does not."""

from __future__ import annotations

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.sample.drawable import NOT_FINITE
from folovllm.sample.kernels import sampler as kernel
from folovllm.sample.sampler import Sampler
from tests.helpers import make_hf_folder
from tests.m1.sampling_reference import make_row, sample

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="samples on the CPU, where kernels need the interpreter"
)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 1.5


def test_a_device_without_kernels_is_refused_by_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel.TritonBackend, "unavailable_reason", lambda device: "needs a CUDA device")
    with pytest.raises(ValueError, match=r"^draw 'triton' cannot run on .*: needs a CUDA device$"):
        sample(torch.zeros(1, 4), [make_row(SamplingParams())], Sampler("triton"))


@pytest.fixture
def kernel_rows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The batch's rows that went through the kernel, launch by launch."""
    log: list[list[int]] = []
    original = kernel.sample

    def noted(logits, filters, seeds, positions):
        log.append(positions.tolist())
        return original(logits, filters, seeds, positions)

    monkeypatch.setattr(kernel, "sample", noted)
    return log


def test_unseeded_rows_take_the_kernel_and_seeded_ones_draw_as_ever(kernel_rows) -> None:
    logits = normal(5, 50)
    settings = [{}, {"top_k": 5}, {"seed": 3}, {"temperature": 0}, {"top_p": 0.5}]
    torch.manual_seed(0)
    tokens = sample(logits, [make_row(SamplingParams(**s)) for s in settings], Sampler("triton")).token_ids
    assert sorted(row for rows in kernel_rows for row in rows) == [1, 4]  # row 0 shares a group with the seeded row
    usual = sample(logits[2:3], [make_row(SamplingParams(seed=3))]).token_ids
    assert tokens[2] == usual[0]
    assert tokens[3] == logits[3].argmax()


def test_torchs_default_generator_decides_the_draws(kernel_rows) -> None:
    def draw() -> list[int]:
        row = make_row(SamplingParams(temperature=3.0))
        return sample(normal(1, 50).expand(8, -1), [row] * 8, Sampler("triton")).token_ids.tolist()

    torch.manual_seed(5)
    first, second = draw(), draw()
    assert first != second
    assert len(set(first)) > 2  # rows with the same logits have noise of their own
    torch.manual_seed(5)
    assert draw() == first


def test_edited_logits_and_raw_logprobs_go_with_the_kernel(kernel_rows) -> None:
    params = SamplingParams(top_k=1, logit_bias={7: 100.0}, logprobs=2)
    output = sample(normal(1, 50), [make_row(params)], Sampler("triton"))
    assert kernel_rows == [[0]]
    assert output.token_ids.tolist() == [7]
    want = normal(1, 50).log_softmax(dim=-1)[0, 7]
    assert output.logprobs is not None
    torch.testing.assert_close(output.logprobs.logprobs[0, 0], want)


def test_processed_logprobs_need_the_distribution_hence_the_torch_path(kernel_rows) -> None:
    params = SamplingParams(top_k=5, logprobs=2, logprobs_mode="processed")
    sample(normal(1, 50), [make_row(params)], Sampler("triton"))
    assert kernel_rows == []


def test_an_engine_draws_with_it(tmp_path, monkeypatch, kernel_rows) -> None:
    monkeypatch.setattr("folovllm.worker.batch_sampler.Sampler", lambda: Sampler("triton"))
    llm = LLM(str(make_hf_folder(tmp_path)), skip_tokenizer_init=True, dtype="float32", device="cpu")
    params = SamplingParams(temperature=0.8, top_k=20, max_tokens=4)
    outputs = llm.generate([[1, 2, 3], [4]], [params, params.clone()])
    assert kernel_rows == [[0, 1]] * 4
    assert all(0 <= token < 256 for output in outputs for token in output.outputs[0].token_ids)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, about NaN
def test_rows_that_cannot_be_drawn_from_end_the_kernels_search_and_are_marked(kernel_rows) -> None:
    logits = normal(4, 50)
    logits[1], logits[2, 9], logits[3] = torch.nan, torch.inf, -torch.inf
    for settings in ({}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 9, "top_p": 0.5, "min_p": 0.1}):
        tokens = sample(logits, [make_row(SamplingParams(**settings))] * 4, Sampler("triton")).token_ids.tolist()
        assert 0 <= tokens[0] < 50
        assert tokens[1:] == [NOT_FINITE] * 3
    assert kernel_rows == [[0, 1, 2, 3]] * 4
