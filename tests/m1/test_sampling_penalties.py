"""Penalties against values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from folovllm import SamplingParams
from folovllm.sample.logits_processors import Penalties
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.sampler import Sampler
from tests.m1.sampling_reference import CPU, make_row

#         token   0    1     2    3     4    5
LOGITS = [2.0, -1.0, 3.0, 0.5, -4.0, 1.0]
PROMPT = [0, 1, 1]
OUTPUT = [2, 2, 4, 2]


def penalised(prompt: list[int] = PROMPT, output: list[int] = OUTPUT, **penalties: float) -> list[float]:
    processor = Penalties()
    processor.update([make_row(SamplingParams(**penalties), prompt, output)])
    return processor.apply(torch.tensor([LOGITS]))[0].tolist()


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    assert penalised(repetition_penalty=2.0) == [1.0, -2.0, 1.5, 0.5, -8.0, 1.0]


def test_repetition_counts_a_token_once_however_often_it_came() -> None:
    assert penalised(prompt=[0] * 9, output=[0] * 9, repetition_penalty=2.0)[0] == 1.0


def test_repetition_below_one_encourages() -> None:
    assert penalised(repetition_penalty=0.5) == [4.0, -0.5, 6.0, 0.5, -2.0, 1.0]


def test_frequency_counts_each_time_in_the_output_only() -> None:
    assert penalised(frequency_penalty=0.5) == [2.0, -1.0, 1.5, 0.5, -4.5, 1.0]


def test_presence_counts_once_in_the_output_only() -> None:
    assert penalised(presence_penalty=0.5) == [2.0, -1.0, 2.5, 0.5, -4.5, 1.0]


def test_all_three_act_in_order_repetition_first() -> None:
    # Token 2: 3 / 2 - 3 * 0.5 - 1 = -1;  token 4: -4 * 2 - 1 * 0.5 - 1 = -9.5
    found = penalised(repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=1.0)
    assert found == [1.0, -2.0, -1.0, 0.5, -9.5, 1.0]


def test_a_negative_penalty_rewards() -> None:
    assert penalised(presence_penalty=-1.0, frequency_penalty=-0.5)[2] == 3.0 + 1.0 + 3 * 0.5


def test_nothing_generated_yet_leaves_presence_and_frequency_without_effect() -> None:
    assert penalised(output=[], presence_penalty=2.0, frequency_penalty=2.0) == LOGITS


def test_an_empty_prompt_and_output_are_left_alone() -> None:
    assert penalised(prompt=[], output=[], repetition_penalty=2.0) == LOGITS


def test_a_masked_logit_stays_masked() -> None:
    processor = Penalties()
    params = SamplingParams(repetition_penalty=0.5, frequency_penalty=-2.0)
    processor.update([make_row(params, [0], [0])])
    assert processor.apply(torch.tensor([[-torch.inf, 1.0]]))[0].tolist() == [-torch.inf, 1.0]


def test_counts_follow_the_live_output() -> None:
    row = make_row(SamplingParams(temperature=0, frequency_penalty=1.0))
    metadata = SamplingMetadata.build([row], 4, CPU)
    logits = torch.tensor([[3.0, 2.5, 1.2, 0.0]])
    for _ in range(6):
        row.output_token_ids.append(int(Sampler()(logits, metadata).token_ids))
    # Each choice costs the token 1.0: 3 | 2.5 | 2 (3-1) | 1.5 (2.5-1) | 1.2 | 1 (3-2)
    assert row.output_token_ids == [0, 1, 0, 1, 2, 0]


def test_counts_survive_a_batch_that_is_built_anew() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1.0)
    row, other = make_row(params), make_row(params, output=[3] * 80)
    logits = torch.tensor([[3.0, 2.5, 1.2, 0.0]])
    for step in range(6):
        rows = [row] if step % 2 else [other, row]
        metadata = SamplingMetadata.build(rows, 4, CPU)
        row.output_token_ids.append(int(Sampler()(logits.expand(len(rows), -1), metadata).token_ids[-1]))
    assert row.output_token_ids == [0, 1, 0, 1, 2, 0]


def test_rows_do_not_share_counts() -> None:
    penalties = Penalties()
    first = make_row(SamplingParams(presence_penalty=1.0), [0], [2])
    penalties.update([first, make_row(SamplingParams(repetition_penalty=2.0), [1], [])])
    found = penalties.apply(torch.tensor([LOGITS, LOGITS]))
    assert found.tolist() == [[2.0, -1.0, 2.0, 0.5, -4.0, 1.0], [2.0, -2.0, 3.0, 0.5, -4.0, 1.0]]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 500])
def test_counts_equal_a_plain_count_at_any_length(length: int) -> None:
    output = torch.randint(0, 200, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(1))
    expected = [x - 0.25 * output.count(token) for token, x in enumerate(logits[0].tolist())]
    processor = Penalties()
    row = make_row(SamplingParams(frequency_penalty=0.25), [1, 2, 3])
    processor.update([row])
    for token_id in output:
        row.output_token_ids.append(token_id)
        processor.apply(logits.clone())
    assert processor.apply(logits.clone())[0].tolist() == pytest.approx(expected, abs=1e-5)
