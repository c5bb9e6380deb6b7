"""A preset's requests: repeated by a seed to the token, and of the form that its name promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workshop.bench.presets import PRESETS

NAMES = list(PRESETS)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_repeats_the_same_requests_to_the_token(name: str) -> None:
    preset = PRESETS[name]
    assert preset.draw() == preset.draw()
    assert replace(preset, seed=1).draw() != preset.draw()


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_keeps_to_its_numbers(name: str) -> None:
    preset = PRESETS[name]
    prompts, outputs = preset.draw()
    assert len(prompts) == len(outputs) == preset.num_requests
    assert max(outputs) <= preset.longest_output
    assert all(0 <= token <= preset.top_id for prompt in prompts for token in prompt)
    assert max(len(p) + o for p, o in zip(prompts, outputs, strict=True)) <= preset.max_model_len


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_can_be_made_small(name: str) -> None:
    small = replace(PRESETS[name], num_requests=3, longest_prompt=4, longest_output=2)
    prompts, outputs = small.draw()
    assert len(prompts) == 3
    assert max(outputs) == 2


def test_nano_vllm_is_as_others_draw_it() -> None:
    prompts, outputs = PRESETS["nano-vllm"].draw()
    assert (sum(map(len, prompts)), sum(outputs)) == (142_827, 133_966)


def test_prompts_below_a_prefix_have_all_of_it_and_no_more_in_common() -> None:
    prompts, _ = PRESETS["shared-prefix"].draw()
    assert prompts[0][:512] == prompts[4][:512] != prompts[1][:512]
    assert prompts[0][512:528] != prompts[4][512:528]
    assert len({tuple(prompt[:512]) for prompt in prompts}) == 4


def test_a_turn_of_a_chat_begins_with_the_turn_before_it() -> None:
    prompts, outputs = PRESETS["chat"].draw()
    for turn in range(1, 4):
        before, now = prompts[16 * (turn - 1)], prompts[16 * turn]
        assert now[: len(before)] == before
        assert len(now) >= len(before) + outputs[16 * (turn - 1)] + 16  # the answer, and a message of its own
    assert prompts[0][:64] == prompts[1][:64]
    assert prompts[0][64:80] != prompts[1][64:80]


def test_the_long_prompts_of_a_burst_come_one_after_the_other() -> None:
    lengths = [len(prompt) for prompt in PRESETS["long-prompt-burst"].draw()[0]]
    assert [place for place, length in enumerate(lengths) if length == 1024] == list(range(16, 24))
    assert max(length for length in lengths if length != 1024) <= 64


def test_gpt2_sampling_is_64_requests_of_128_tokens_under_both_filters() -> None:
    preset = PRESETS["gpt2-sampling"]
    assert preset.draw()[1] == [128] * 64
    assert preset.sampling == {"temperature": 1.0, "top_k": 40, "top_p": 0.9}
    assert preset.top_id == 50_257 - 1
