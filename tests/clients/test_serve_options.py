"""The options of `folovllm serve`, as far as they can be wrong before a server is there."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from folovllm.config import CacheConfig, ModelConfig, SchedulerConfig
from folovllm.entrypoints.cli.main import build_parser, main
from folovllm.entrypoints.cli.parser import engine_kwargs
from folovllm.entrypoints.commands import given
from folovllm.sampling_params import SamplingParams
from folovllm.serving.command import check_config

FIELDS = [field.name for config in (ModelConfig, CacheConfig, SchedulerConfig) for field in dataclasses.fields(config)]


@pytest.mark.parametrize("command", ["serve", "generate"])
@pytest.mark.parametrize("name", sorted(set(FIELDS) - {"model"}))
def test_every_field_of_the_engine_is_an_option(name: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help=all"])
    assert f"--{name.replace('_', '-')}" in capsys.readouterr().out


def test_only_what_is_given_goes_to_the_engine() -> None:
    typed = ["serve", "m", "--max-num-seqs", "4", "--no-enable-prefix-caching", "--scheduling-policy", "priority"]
    args = build_parser().parse([*typed, "--swap-space", "0.5"])
    given = {name: getattr(args, name) for name in FIELDS if name in args}
    expected = {"max_num_seqs": 4, "enable_prefix_caching": False, "policy": "priority", "swap_space": 0.5}
    assert given == {"model": "m", **expected}


def test_generate_gives_them_to_the_engine_and_keeps_its_own_seed() -> None:
    args = build_parser().parse(["generate", "Hi", "--batch-invariant", "--seed", "3", "--block-size", "4"])
    kwargs = engine_kwargs(args)
    assert (kwargs["batch_invariant"], kwargs["block_size"]) == (True, 4)
    assert given(args, SamplingParams)["seed"] == 3


def test_the_engines_defaults_hold_where_its_options_are_checked() -> None:
    check_config("embedded", {"kv_offloading_size": 1.0})  # which needs a prefix cache, and serve has one


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs must be positive"),
        (["--max-num-seq", "1"], "did you mean '--max-num-seqs'?"),
        (["--port", "70000"], "port must be in [0, 65535], got 70000"),
        (["--api-key", "schlüssel"], "--api-key must be of visible ASCII"),
        (["--policy", "random"], "policy must be one of"),
        (["embedded", "other"], "error: unknown argument 'other' (see "),
        (["--enable-lora", "--lora-modules", "a"], "lora_modules must be NAME=PATH"),
        (["--enable-lora", "--lora-modules", "a=x", "a=y"], "lora_modules must have names that differ"),
    ],
)
def test_a_wrong_option_is_one_line(typed: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["serve", *typed])
    except SystemExit as ended:
        status = int(str(ended.code))
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert error.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi_offline", None)
    assert main(["serve"]) == 2
    assert "pip install -e '.[serve]' in the clone" in capsys.readouterr().err
