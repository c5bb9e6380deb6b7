"""The command line: starts without torch, refuses bad input in one line, and prints what the engine generates."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import folovllm
from folovllm import LLM, CacheConfig, ModelConfig, SchedulerConfig
from folovllm.__main__ import main
from folovllm.entrypoints import commands
from folovllm.sampling_params import SamplingParams
from tests.m1.support import make_text_model

ROOT = Path(folovllm.__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_text_model(tmp_path_factory.mktemp("cli")))


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as exit_:  # argparse's own way out
        code = int(exit_.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# Start-up.


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["generate", "--help"], ["generate", "--nonsense", "x"], ["generate", "x", "--temperature", "-1"]],
    ids=" ".join,
)
def test_help_and_bad_usage_import_neither_torch_nor_transformers(argv: list[str]) -> None:
    code = (
        "import sys\nfrom folovllm.__main__ import main\n"
        f"try: code = main({argv!r})\nexcept SystemExit as exit: code = exit.code\n"
        "print(code, [name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    expected = 0 if "--help" in argv else 2
    assert done.stdout.splitlines()[-1] == f"{expected} []", done.stderr


def test_module_is_the_command() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "folovllm", "generate", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: folovllm generate")


# Bad input.


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["generat"], "invalid choice: 'generat'"),
        (["generate", "x", "--temprature", "0"], "--temprature"),
        (["generate", "x", "--n", "two"], "invalid int value: 'two'"),
        (["generate"], "required: PROMPT"),
        (["generate", "x", "--top-p", "0"], "top_p must be in (0, 1]"),
        (["generate", "x", "--temperature", "nan"], "temperature must be"),
        (["generate", "x", "--n", "0"], "n must be at least 1"),
        (["generate", "x", "--n", "2", "--temperature", "0"], "n must be 1 when using greedy sampling"),
        (["generate", "x", "--dtype", "bf16"], "did you mean 'bfloat16'?"),
        (["generate", "x", "--load-format", "x"], "load_format must be one of"),
        (["generate", "x", "--max-model-len", "0"], "max_model_len must be"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(argv, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert text in err


@pytest.mark.parametrize("config", [ModelConfig, CacheConfig, SchedulerConfig])
def test_every_field_of_the_engine_is_an_option(config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["generate", "--help"], capsys)
    assert [f.name for f in dataclasses.fields(config) if f"--{f.name.replace('_', '-')}" not in out] == []


def test_what_only_the_model_can_refuse_is_one_line_too(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (
        (model, "prompt has 601 tokens, but max_model_len is 512"),
        ("/no/such/folder", "got '/no/such/folder': no such folder"),
    ):
        code, out, err = run(["generate", "x" * 600, "--model", name], capsys)
        *loading, error = err.splitlines()
        assert (code, out) == (2, "")
        assert loading == [f"loading {name} …"] or not Path(name).exists()  # which may be said before
        assert error.startswith("error: ")
        assert text in error


# generate.


def test_what_is_loaded_is_said_in_a_pipe_by_a_line_and_at_a_terminal_by_a_spinner(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a name with brackets, which rich reads as markup."""
    monkeypatch.chdir(tmp_path)
    Path("[").mkdir()
    Path("[/a]").symlink_to(Path(model).resolve())
    said = {}
    for is_terminal in (False, True):
        file = io.StringIO()
        monkeypatch.setattr(commands, "notes", Console(file=file, force_terminal=is_terminal, width=80))
        code, _, error = run(["generate", "x" * 600, "--model", "[/a]"], capsys)
        assert (code, "prompt has 601 tokens" in error) == (2, True)
        said[is_terminal] = file.getvalue()
    assert said[False] == "loading [/a] …\n"
    assert "loading [/a] …" in said[True]
    assert "loading" not in said[True].rpartition("\x1b[2K")[2]  # it is gone when the line of the error comes


PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def greedy(model: str, prompt: Any) -> list[int]:
    return LLM(model).generate(prompt, PARAMS, use_tqdm=False)[0].outputs[0].token_ids


GREEDY = ["--temperature", "0", "--max-tokens", "8", "--ignore-eos"]


def test_generate_prints_the_text_alone_on_stdout(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = LLM(model).get_tokenizer().decode(greedy(model, "hello"), skip_special_tokens=True)
    code, out, err = run(["generate", "hello", "--model", model, *GREEDY], capsys)
    assert (code, out) == (0, expected + "\n")
    assert "8 tokens: the first after" in err
    assert "· length" in err


def test_several_prompts_are_printed_one_after_the_other(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = LLM(model).get_tokenizer()
    texts = [tokenizer.decode(greedy(model, prompt), skip_special_tokens=True) for prompt in ("hello", "汉字")]
    code, out, err = run(["generate", "hello", "汉字", "--model", model, *GREEDY], capsys)
    assert (code, out) == (0, "".join(text + "\n" for text in texts))
    assert [line for line in err.splitlines() if line.startswith(">")] == ["> hello", "> 汉字"]


def test_generate_reads_stdin(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, _ = run(["generate", "hello", "--model", model, *GREEDY], capsys)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))  # the shell's newline is not part of the prompt
    assert run(["generate", "-", "--model", model, *GREEDY], capsys)[1] == expected


def test_generate_chat_goes_through_the_template(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(model)
    (answer,) = llm.chat([{"role": "user", "content": "hello"}], PARAMS, use_tqdm=False)
    assert answer.prompt == "<bos>user: hello\nassistant: "
    _, out, _ = run(["generate", "hello", "--chat", "--model", model, *GREEDY], capsys)
    assert out == answer.outputs[0].text + "\n"


def test_generate_hands_every_option_on(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SamplingParams] = []

    def add_request(self: Any, request_id: str, prompt: Any, params: SamplingParams, **options: Any) -> None:
        seen.append(params)
        raise ValueError("enough")

    monkeypatch.setattr("folovllm.engine.llm_engine.LLMEngine.add_request", add_request)
    options = {"n": 2, "max_tokens": 9, "min_tokens": 3, "temperature": 0.5, "top_p": 0.7, "top_k": 5, "min_p": 0.1,
               "seed": 3, "repetition_penalty": 1.5, "presence_penalty": 0.25, "frequency_penalty": 0.75}  # fmt: skip
    argv = [item for name, value in options.items() for item in (f"--{name.replace('_', '-')}", str(value))]
    run(["generate", "x", "--model", model, *argv, "--stop", "a", "--stop", "b", "--ignore-eos"], capsys)
    assert seen == [SamplingParams(**options, stop=["a", "b"], ignore_eos=True)]


def test_two_runs_without_a_seed_differ_and_with_one_agree(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    def text(*extra: str) -> str:
        return run(["generate", "hello", "--model", model, "--max-tokens", "40", *extra], capsys)[1]

    assert text() != text()
    assert text("--seed", "3") == text("--seed", "3")


def test_interrupt_ends_with_130_and_keeps_what_was_printed(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(3, monkeypatch)
    code, out, err = run(["generate", "hello", "--model", model, *GREEDY], capsys)
    assert code == 130
    assert "3 tokens" in err
    assert out.endswith("\n")


def interrupt_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the midst of a forward pass, after that many others."""
    from folovllm.worker.model_runner import ModelRunner

    original, count = ModelRunner.execute_model, 0

    def execute(self: Any, seq: Any) -> Any:
        nonlocal count
        count += 1
        if count == steps + 1:
            raise KeyboardInterrupt
        return original(self, seq)

    monkeypatch.setattr(ModelRunner, "execute_model", execute)


def test_demo_answers_in_both_languages_and_tells_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["demo"], capsys)
    assert code == 0
    english, chinese, story = out.splitlines()
    assert len(english) > 10
    assert any("一" <= char <= "鿿" for char in chinese)
    assert len(story) > 100
    assert err.count("tokens/s") == 3
