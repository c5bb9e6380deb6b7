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


# Prompt, output, penalties, and the logits then.
BY_HAND = {
    "repetition divides positive logits of both and multiplies negative ones": (
        PROMPT, OUTPUT, {"repetition_penalty": 2.0}, [1.0, -2.0, 1.5, 0.5, -8.0, 1.0]
    ),
    "it counts a token once": ([0] * 9, [0] * 9, {"repetition_penalty": 2.0}, [1.0, *LOGITS[1:]]),
    "below one it encourages": (PROMPT, OUTPUT, {"repetition_penalty": 0.5}, [4.0, -0.5, 6.0, 0.5, -2.0, 1.0]),
    "frequency counts each time in the output": (
        PROMPT, OUTPUT, {"frequency_penalty": 0.5}, [2.0, -1.0, 1.5, 0.5, -4.5, 1.0]
    ),
    "presence counts once in the output": (PROMPT, OUTPUT, {"presence_penalty": 0.5}, [2.0, -1.0, 2.5, 0.5, -4.5, 1.0]),
    # Token 2: 3 / 2 - 3 * 0.5 - 1 = -1;  token 4: -4 * 2 - 1 * 0.5 - 1 = -9.5
    "all three, repetition first": (
        PROMPT, OUTPUT, {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 1.0},
        [1.0, -2.0, -1.0, 0.5, -9.5, 1.0],
    ),
    "a negative one rewards": (
        PROMPT, OUTPUT, {"presence_penalty": -1.0, "frequency_penalty": -0.5}, [2.0, -1.0, 5.5, 0.5, -2.5, 1.0]
    ),
    "nothing is generated yet": (PROMPT, [], {"presence_penalty": 2.0, "frequency_penalty": 2.0}, LOGITS),
    "nothing at all": ([], [], {"repetition_penalty": 2.0}, LOGITS),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_penalties_are_these(name: str) -> None:
    prompt, output, penalties, expected = BY_HAND[name]
    processor = Penalties()
    processor.update([make_row(SamplingParams(**penalties), prompt, output)])
    assert processor.apply(torch.tensor([LOGITS]))[0].tolist() == expected


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
