"""What was typed for vLLM starts here: its spellings, its options, and a file of them."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, AsyncLLM, BeamSearchParams, EngineArgs, LLMEngine, SamplingParams, vllm_names
from folovllm.engine.builder.defaults import config_for_llm, engine_options
from folovllm.entrypoints.cli.main import build_parser, main
from folovllm.entrypoints.cli.parser import engine_kwargs
from folovllm.errors import ModelLoadError
from folovllm.model_loader.hub import hub_folder

DRAFTS = {"method": "ngram", "num_speculative_tokens": 4}


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
    args = typed("--served-model-name", "a_b", "c", "--response-role", "x_y")
    assert (args.served_model_name, args.response_role) == (["a_b", "c"], "x_y")
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
        "false\napi-key: [a, b]\nserved-model-name: [c, d]\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 2}\n"
    )
    args = typed("--max-num-seqs", "3", "--config", str(config))
    assert (args.model, args.port, args.api_keys) == ("m", 9000, ["a", "b"])
    assert args.served_model_name == ["c", "d"]
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
        ("prot: 80", "unknown argument '--prot=80'; did you mean '--port'?"),
        ("port: true", "argument --port: expected one argument"),
        ("salt-by-key: 1", "--salt-by-key/--no-salt-by-key: ignored explicit argument '1'"),
        ("port: [", "must be a file of YAML"),
        ("port", "must be a file of options in YAML"),
        ("config: x", "--config must name no other file, got"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(text)
    assert said in refusal(["serve", "--config", str(config)], capsys)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "serve --pipeline-parallel-size 2",
            "must be 1, got 2; vLLM has this, FoloVLLM does not: tensor_parallel_size",
        ),
        ("serve -pp 2", "pipeline_parallel_size must be 1, got 2; vLLM has this"),
        (
            "serve --max-cpu-loras 4",
            "max_cpu_loras must be left out, got 4; vLLM has this, FoloVLLM does not: an adapter is in a slot",
        ),
        ("serve --max-log-len 9", "max_log_len must be given with enable_log_requests, got 9 without it"),
        ("serve --logits-processors B", "logits_processors must be a list of classes, or of 'module:Class', got ['B']"),
        ("serve --kv-transfer-config.kv_role both", "kv_transfer_config must be left out, got {'kv_role': 'both'}"),
        ("serve -sc {} --speculative-config.method ngram", "--speculative-config must be given as JSON or key by key"),
        ("serve --log-config-file /none", "--log-config-file must be a file that can be read, got '/none'"),
        ("bench latency --num-iters 3", "--num-iters must be left out of folovllm bench latency: vLLM has this"),
        ("generate a --url x", "--url must be left out of folovllm generate: vLLM has this"),
        ("launch", "vLLM has this, FoloVLLM does not: `folovllm serve`"),
        ("bench startup", "vLLM has this, FoloVLLM does not: `folovllm bench latency`"),
        ("serve --max-model-len 1.2345k", "must be a whole number, got '1.2345k'"),
        ("serve --max-model-len many", "must be a whole number, such as 4096, 4k or 4K"),
        ("serve a --model b", "model must be given once, got 'a' and 'b'"),
        ("serve --ssl-keyfile k.pem", "--ssl-keyfile must be given with --ssl-certfile"),
        ("serve --ssl-certfile /none", "be a certificate and its key in PEM, got '/none'"),
        ("serve --chat-template /none", "--chat-template must be a file that can be read, got '/none'"),
        ("serve --uvicorn-log-level loud", "uvicorn_log_level must be one of 'critical', 'error'"),
        ("serve --tool-call-parser hermez", "tool_call_parser must be one of 'qwen3_xml', 'hermes'"),
        ("genrate x", "did you mean 'generate'?"),
    ],
)
def test_what_cannot_be_is_one_line(argv: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refusal(argv.split(), capsys)


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        ("-sc.method ngram --speculative-config.num_speculative_tokens 4", {"speculative_config": DRAFTS}),
        ("--spec-method ngram --spec-tokens 4", {"speculative_config": DRAFTS}),
        ("--hf_overrides.rope_parameters.factor=2k", {"hf_overrides": {"rope_parameters": {"factor": 2000}}}),
        ("--hf-overrides.ids+ a,b --hf-overrides.ids+=c", {"hf_overrides": {"ids": ["a", "b", "c"]}}),
        ("-q fp8 --device-memory-utilization 0.5", {"quantization": "fp8", "gpu_memory_utilization": 0.5}),
        ("--load-format safetensors --model-impl vllm", {"load_format": "auto", "model_impl": "folovllm"}),
        ("--max-model-len auto --performance-mode balanced --hf-token", {"hf_token": True}),
        ("--structured-outputs-config.backend xgrammar --enable-request-id-headers", {}),
        ("--no-enable-lora --max-loras 4", {"enable_lora": False, "max_loras": 4}),
    ],
)
def test_what_vllm_spells_otherwise_is_an_option_here(argv: str, options: dict[str, Any]) -> None:
    assert engine_options(engine_kwargs(typed(*argv.split()))) == options


def test_what_changes_nothing_is_taken_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("folovllm").addHandler(caplog.handler)
    argv = "-O3 -cc.mode 3 --limit-mm-per-prompt {} --disable-log-requests -pp 1 --api-server-count 1"
    assert engine_options(engine_kwargs(typed(*argv.split()))) == {}
    (line,) = caplog.messages
    assert line.startswith("without effect here: ")
    said = ("compilation_config", "optimization_level", "limit_mm_per_prompt", "disable_log_requests")
    assert all(f"{name} (" in line for name in said)
    logging.getLogger("folovllm").removeHandler(caplog.handler)


def _said(call: Callable[..., Any], argument: Any) -> str:
    """The ValueError's text; "" without one."""
    try:
        call(argument)
    except ValueError as error:
        return str(error)
    return ""


KINDS = {"int": "3", "float": "2.5", "json": "{}", "text": "x", "list": "x", "optional": "x"}


def test_no_argument_of_vllms_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever its value, it works, changes nothing, or is refused by its name with the way out."""
    parser, refused = build_parser(), set()
    theirs = parser.parse(["serve"]).vllm_names
    assert len(vllm_names.arguments()) > 300 > len(theirs) > 200
    for name, how in vllm_names.arguments().items():
        value = [] if how["kind"] == "switch" else [KINDS[how["kind"]]]
        for option in ("--" + name.replace("_", "-"), "--" + name, *how.get("spellings", ())):
            try:
                args = parser.parse(["serve", option, *value])
                said = "" if name not in theirs else _said(engine_options, engine_kwargs(args))
            except (SystemExit, ValueError):  # one of ours, whose value is of another kind
                assert name not in theirs
                assert "unknown argument" not in capsys.readouterr().err
                continue
            if said:
                refused.add(name)
                assert re.match(f"{name} must be .*; vLLM has this, FoloVLLM does not: ", said)
        default = how.get("default")
        if name in theirs and default is not None and name not in vllm_names.names()["so_anyway"]:
            assert vllm_names.check_argument(name, default) in ("", vllm_names.names()["without_effect"].get(name))
    assert len(refused) > 150
    assert all(vllm_names.is_option(f"--{option}") for option in vllm_names.names()["options of other commands"])


@pytest.mark.parametrize("command", vllm_names.names()["commands"].values())
def test_what_stands_for_a_command_of_vllms_is_one(command: str) -> None:
    if words := re.findall(r"`folovllm ([a-z]+)( [a-z]+)?", command):
        with pytest.raises(SystemExit) as ended:
            build_parser().parse([*"".join(words[0]).split(), "--help"])
        assert ended.value.code == 0


def test_no_keyword_of_vllms_is_unknown() -> None:
    for name in vllm_names.names()["engine"].keys() - {"model"}:
        assert "unknown keyword" not in _said(partial(config_for_llm, **{name: "x"}), None), name
    assert EngineArgs(pipeline_parallel_size=1).create_engine_config().model_config.model == "embedded"
    for name in vllm_names.names()["SamplingParams"].keys() - SamplingParams.__dataclass_fields__.keys():
        with pytest.raises(TypeError, match=f"^unknown keyword '{name}': vLLM has this, FoloVLLM does not; "):
            SamplingParams(**{name: 1})


@pytest.mark.parametrize("kind", [LLM, AsyncLLM, LLMEngine], ids=lambda kind: kind.__name__)
def test_no_method_of_vllms_is_unknown(kind: type[Any]) -> None:
    made = kind.__new__(kind)
    for name, keywords in vllm_names.names()["methods"][kind.__name__].items():
        if not hasattr(kind, name):
            with pytest.raises(AttributeError, match=rf"has no attribute '{name}': vLLM has this, FoloVLLM does not; "):
                getattr(made, name)
        elif name in ("generate", "chat", "beam_search", "reset_prefix_cache") and kind is not LLMEngine:
            own = inspect.signature(getattr(kind, name)).parameters
            vllm_names.check_keywords(kind.__name__, name, dict.fromkeys(set(keywords) - own.keys()))
            for keyword in set(keywords) - own.keys():
                with pytest.raises(ValueError, match=f"^{keyword} must be None, got 1; vLLM has this"):
                    vllm_names.check_keywords(kind.__name__, name, {keyword: 1})
            with pytest.raises(TypeError, match=r"got an unknown keyword 'use_tdqm'$"):
                vllm_names.check_keywords(kind.__name__, name, {"use_tdqm": True})
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'$"):
        made.nonsense  # noqa: B018


def test_imports_of_vllms_examples_work_or_say_what_to_import() -> None:
    from folovllm.engine.arg_utils import AsyncEngineArgs, EngineArgs  # type: ignore[import-not-found]
    from folovllm.engine.async_llm_engine import AsyncLLMEngine  # type: ignore[import-not-found]
    from folovllm.inputs import TextPrompt, TokensPrompt  # type: ignore[import-not-found]
    from folovllm.sampling_params import BeamSearchParams as Params

    assert (AsyncLLMEngine, Params) == (AsyncLLM, BeamSearchParams)
    assert all((EngineArgs, AsyncEngineArgs, TextPrompt, TokensPrompt))
    from folovllm.lora.request import LoRARequest

    assert LoRARequest("a", 1, "folder") == LoRARequest("a", 1, Path("folder"))
    with pytest.raises(ImportError, match=r"BatchUpdate: .*register_logits_processor"):
        from folovllm.v1.sample.logits_processor import BatchUpdate  # type: ignore[import-not-found]  # noqa: F401


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
