"""What was typed for vLLM starts here: its spellings, its options, and a file of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from folovllm.engine.defaults import NEUTRAL, config_for_llm
from folovllm.engine.hub import hub_folder
from folovllm.entrypoints.cli.main import build_parser, main
from folovllm.entrypoints.cli.parser import engine_kwargs
from folovllm.errors import ModelLoadError


def typed(*argv: str) -> Any:
    return build_parser().parse(["serve", *argv])


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        status = main(argv)
    except SystemExit as ended:
        status = int(str(ended.code))
    error = capsys.readouterr().err
    assert (status, error.count("\n")) == (2, 1)
    return error


def test_a_command_line_of_vllms_is_this_engines() -> None:
    args = typed(
        "Qwen/Qwen3-0.6B", "--max_model_len=4k", "--max-num-batched-tokens", "2K", "-tp", "2", "-pp",
        "1", "--no-enable-lora", "--disable-log-stats", "--enable-auto-tool-choice", "--gpu_memory_utilization", "0.8",
        "--revision", "main", "--download-dir", "/models",
    )  # fmt: skip
    engine = engine_kwargs(args)
    assert (args.model, engine["max_model_len"], engine["max_num_batched_tokens"]) == ("Qwen/Qwen3-0.6B", 4000, 2048)
    assert (engine["gpu_memory_utilization"], engine["tensor_parallel_size"]) == (0.8, 2)
    assert (engine["revision"], engine["download_dir"]) == ("main", "/models")


def test_a_text_keeps_its_underscores() -> None:
    args = typed("--served-model-name=a_b", "--metrics-prefix", "x_y")
    assert (args.served_model_name, args.metrics_prefix) == ("a_b", "x_y")
    assert build_parser().parse(["generate", "--", "--a_b"]).prompts == ["--a_b"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("2m", 2_000_000), ("1G", 2**30)],
)
def test_a_number_may_have_a_letter(text: str, number: int) -> None:
    assert engine_kwargs(typed("--max-model-len", text))["max_model_len"] == number


@pytest.mark.parametrize("argv", [["m"], ["--model", "m"], ["m", "--model", "m"], ["--model=m", "--port", "1"]])
def test_the_model_has_two_places(argv: list[str]) -> None:
    assert typed(*argv).model == "m"


def test_a_file_has_what_is_not_typed(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(
        "model: m\nport: 9000\nmax_num_seqs: 8\nenable-prefix-caching: false\nsalt-by-key: true\nallow-credentials: "
        "false\napi-key: [a, b]\nspeculative-config: {method: ngram, num_speculative_tokens: 2}\n"
    )
    args = typed("--max-num-seqs", "3", "--config", str(config))
    assert (args.model, args.port, args.api_keys) == ("m", 9000, ["a", "b"])
    assert (args.salt_by_key, args.allow_credentials) == (True, False)
    assert engine_kwargs(args) == {
        "max_num_seqs": 3,
        "enable_prefix_caching": False,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
    }
    args = typed("other", "--config", str(config), "--api-key", "c")
    assert (args.model, args.api_keys) == ("other", ["c"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 80", "'prot' is none; did you mean '--port'?"),
        ("port: true", "--port in --config must be a value, got True"),
        ("salt-by-key: 1", "--salt-by-key in --config must be true or false, got 1"),
        ("port: [", "must be a file of YAML"),
        ("port", "must be a file of options in YAML"),
        ("config: x", "'config' is none"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(text)
    assert said in refusal(["serve", "--config", str(config)], capsys)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("serve --pipeline-parallel-size 2", "pipeline_parallel_size must be None or 1, got 2"),
        ("serve -pp 2", "pipeline_parallel_size must be None or 1, got 2"),
        ("serve --enable-lora", "enable_lora must be None or False, got True"),
        ("serve --max-model-len 1.2345k", "must be a whole number, got '1.2345k'"),
        ("serve --max-model-len many", "must be a whole number, such as 4096, 4k or 4K"),
        ("serve a --model b", "model must be given once, got 'a' and 'b'"),
        ("serve --ssl-keyfile k.pem", "--ssl-keyfile must be given with --ssl-certfile"),
        ("serve --ssl-certfile /none", "be a certificate and its key in PEM, got '/none'"),
        ("serve --chat-template /none", "--chat-template must be a file that can be read, got '/none'"),
        ("serve --uvicorn-log-level loud", "invalid choice: 'loud'"),
        ("genrate x", "did you mean 'generate'?"),
    ],
)
def test_what_cannot_be_is_one_line(argv: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(argv.split(), capsys)


def test_each_neutral_option_is_refused_by_its_name_where_it_says_something() -> None:
    for name, values in NEUTRAL.items():
        option = "--" + name.replace("_", "-")
        for value in values:
            if isinstance(value, bool):
                assert engine_kwargs(typed(option if value else f"--no{option[1:]}")) == {name: value}
            elif value is not None:
                assert engine_kwargs(typed(option, str(value))) == {name: value}


class _Hub:
    """Stands for the hub: out of reach, or with one model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reach: Callable[..., Any], folder: str | None) -> None:
        self.asked: list[dict[str, Any]] = []

        def download(model: str, **how: Any) -> str:
            self.asked.append({"model": model, **how})
            if folder is None:
                raise OSError("not here")
            return folder

        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.get_session", lambda: type("Session", (), {"head": staticmethod(reach)}))
        monkeypatch.setattr("huggingface_hub.snapshot_download", download)


def _nobody(*_: Any, **how: Any) -> None:
    assert how["timeout"] <= 10
    raise OSError("Name or service not known")


def test_a_hub_out_of_reach_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _Hub(monkeypatch, _nobody, None)
    with pytest.raises(ModelLoadError, match=r"the hub at .* cannot be reached \(Name or service not known\)"):
        config_for_llm("some/model")


def test_without_the_hub_what_was_downloaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _Hub(monkeypatch, _nobody, "/cache/some-model")
    config = config_for_llm("some/model").model_config
    assert (config.model, config.tokenizer) == ("/cache/some-model", "/cache/some-model")
    assert hub.asked[0]["local_files_only"]


def test_a_revision_and_a_place_are_the_hubs_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _Hub(monkeypatch, lambda *_, **__: None, "/mine/some-model")
    assert hub_folder("some/model") == "some/model"
    assert config_for_llm("some/model", revision="v2", download_dir="/mine").model_config.model == "/mine/some-model"
    assert {name: hub.asked[0][name] for name in ("revision", "cache_dir", "local_files_only")} == {
        "revision": "v2",
        "cache_dir": "/mine",
        "local_files_only": False,
    }


def test_a_folder_is_not_looked_for_at_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _Hub(monkeypatch, _nobody, None)
    with pytest.raises(ValueError, match=r"^revision must be None for a model that is here, got 'main'"):
        config_for_llm(str(tmp_path), revision="main")
    assert config_for_llm(str(tmp_path)).model_config.model == str(tmp_path)
    assert dataclasses.asdict(config_for_llm(None))["model_config"]["model"] == "embedded"
