"""`folovllm chat`: what goes to the model with each turn, and what the user can do besides asking."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from folovllm.__main__ import main
from tests.m1.support import make_text_model
from tests.m1.test_commands import interrupt_after


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_text_model(tmp_path_factory.mktemp("chat")))


class Chat:
    """Runs `folovllm chat` on typed lines, and keeps the prompts that reached the engine."""

    def __init__(self, model: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from folovllm.engine.llm_engine import LLMEngine

        self.model, self.capsys, self.monkeypatch = model, capsys, monkeypatch
        self.prompts: list[str] = []
        original = LLMEngine.generate_stream

        def generate_stream(engine: LLMEngine, prompt: Any, params: Any) -> Any:
            self.prompts.append(prompt["prompt"])
            return original(engine, prompt, params)

        monkeypatch.setattr(LLMEngine, "generate_stream", generate_stream)

    def __call__(self, *lines: str, options: tuple[str, ...] = ()) -> tuple[int, list[str], str]:
        self.monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        argv = ["chat", "--model", self.model, "--temperature", "0", "--max-tokens", "4", "--ignore-eos", *options]
        code = main(argv)
        captured = self.capsys.readouterr()
        return code, captured.out.split("\n")[:-1], captured.err


@pytest.fixture
def chat(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Chat:
    return Chat(model, capsys, monkeypatch)


def test_the_second_turn_carries_the_first(chat: Chat) -> None:
    code, answers, _ = chat("hello", "more")
    assert code == 0  # the end of the input ends the conversation
    assert chat.prompts[0] == "<bos>user: hello\nassistant: "
    assert chat.prompts[1] == f"<bos>user: hello\nassistant: {answers[0]}\nuser: more\nassistant: "


def test_system_message_stands_first_in_every_turn(chat: Chat) -> None:
    chat("a", "b", options=("--system", "be kind"))
    assert all(prompt.startswith("<bos>system: be kind\nuser: a\n") for prompt in chat.prompts)


def test_reset_forgets(chat: Chat) -> None:
    chat("hello", "/reset", "more")
    assert chat.prompts[1] == "<bos>user: more\nassistant: "


def test_quit_ends_before_the_lines_after_it(chat: Chat) -> None:
    code, _, _ = chat("/quit", "hello")
    assert (code, chat.prompts) == (0, [])


def test_help_and_unknown_commands_are_not_sent_to_the_model(chat: Chat) -> None:
    _, _, err = chat("/help", "/nonsense", "", "   ")
    assert chat.prompts == []
    assert err.count("/reset forgets") == 3  # at the start, for /help, for the unknown one


def test_history_that_outgrows_the_model_loses_its_oldest_exchange(chat: Chat) -> None:
    # Of 64 tokens 4 are kept for the answer. A turn is <bos>, "user: …\n" and "assistant: ".
    _, _, err = chat("a" * 20, "b" * 30, options=("--max-model-len", "64"))
    assert chat.prompts[1] == f"<bos>user: {'b' * 30}\nassistant: "
    assert "more than 64 tokens: without the oldest 1 exchanges" in err


def test_history_that_fits_to_the_last_token_is_kept(chat: Chat) -> None:
    chat("a", "b")
    encode = len(chat.prompts[1].removeprefix("<bos>").encode()) + 1  # a token is a byte
    prompts = list(chat.prompts)
    chat.prompts.clear()
    _, _, err = chat("a", "b", options=("--max-model-len", str(encode + 4)))
    assert chat.prompts == prompts
    assert "without the oldest" not in err
    chat.prompts.clear()
    _, _, err = chat("a", "b", options=("--max-model-len", str(encode + 3)))
    assert "without the oldest" in err


def test_message_that_cannot_fit_is_refused_and_the_conversation_goes_on(chat: Chat) -> None:
    code, answers, err = chat("hello", "x" * 100, "more", options=("--max-model-len", "80"))
    assert code == 0
    assert "error: prompt has 119 tokens, but max_model_len is 80" in err
    assert chat.prompts[-1] == f"<bos>user: hello\nassistant: {answers[0]}\nuser: more\nassistant: "


def test_interrupt_stops_the_answer_and_not_the_conversation(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(2, monkeypatch)
    code, answers, err = chat("hello", "more")
    assert code == 0
    assert re.search("2 tokens: .* · stopped", err)
    # What there was of the answer stays in the history, and the engine serves the next turn.
    assert chat.prompts[1] == f"<bos>user: hello\nassistant: {answers[0]}\nuser: more\nassistant: "
    assert re.search("4 tokens: .* · length", err)


def test_model_without_a_chat_template_is_refused_before_the_first_question(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from folovllm.engine.llm_engine import LLMEngine

    original = LLMEngine.__init__

    def without_template(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.tokenizer.chat_template = None

    monkeypatch.setattr(LLMEngine, "__init__", without_template)
    assert main(["chat", "--model", model]) == 2
    assert "messages need a chat template" in capsys.readouterr().err
