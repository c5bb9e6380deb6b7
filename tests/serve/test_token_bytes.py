"""Log-probabilities name each token by its bytes, and say where it begins in the text that is sent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import PreTrainedTokenizerFast

from folovllm.outputs import CompletionOutput, Logprob, RequestOutput
from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.openai.protocol import ChatRequest, CompletionRequest
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.serving_completion import CompletionServing
from folovllm.serving.openai.token_bytes import TokenBytes
from tests.m1.test_detokenizer import FALLBACK, KINDS, ids_of

MARK = "\u2581"


def served(kind: type, backend, **fields):
    """One kind of answers without an engine: only what names tokens."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)

    serving = SimpleNamespace(tokenizer=tokenizer, token_bytes=TokenBytes(tokenizer), options=ServerOptions())
    return kind(serving)


def output(prompt, prompt_ids, token_ids, text, rows):
    choice = CompletionOutput(0, text, token_ids, logprobs=rows, finish_reason="length")
    return RequestOutput("r", prompt, prompt_ids, None, [choice], True), choice


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_the_tokens_join_to_those_of_the_text(kind):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind])
    known, pepper = TokenBytes(tokenizer), "🌶"
    token_ids = {
        "byte fallback": ids_of("a", f"{MARK}b", pepper.encode()),
        "byte level": [tokenizer.convert_tokens_to_ids(piece) for piece in ("a", "Ġ", "b", "ðŁ", "Į", "¶")],
        "words": [tokenizer.convert_tokens_to_ids(piece) for piece in ("a", f"{MARK}once", "中")],
    }[kind]
    assert b"".join(map(known.of, token_ids)).decode() == {"words": "a once中"}.get(kind, f"a b{pepper}")


def test_chat_gives_the_bytes_of_half_a_character():
    (pepper,) = (ids_of("🌶".encode()),)
    rows = [{token_id: Logprob(-1.0, 1, "\ufffd")} for token_id in pepper]
    _, choice = output("a", ids_of("a"), pepper, "🌶", rows)
    body = ChatRequest(messages=[{"role": "user", "content": "a"}], logprobs=True)
    content = served(ChatServing, FALLBACK)._logprobs(choice, body, at_once)["content"]
    assert [entry["bytes"] for entry in content] == [[byte] for byte in "🌶".encode()]


def of_completion(body, prompt, prompt_ids, token_ids, text, rows):
    made, choice = output(prompt, prompt_ids, token_ids, text, rows)
    if body.echo:
        made.prompt_logprobs = [None, *({token_id: Logprob(-1.0, 1, "?")} for token_id in prompt_ids[1:])]
    return served(CompletionServing, FALLBACK)._choice(body, made, (0, True, choice), {}, at_once)


def test_offsets_are_places_in_the_text_and_spaces_are_kept():
    token_ids = ids_of(f"{MARK}b", "🌶".encode(), "d")
    rows = [{token_id: Logprob(-1.0, 1, "?")} for token_id in token_ids]
    body = CompletionRequest(prompt="a", logprobs=1)
    made = of_completion(body, "a", ids_of("a"), token_ids, " b🌶d", rows)["logprobs"]
    assert made["tokens"] == [" b", *["\ufffd"] * 4, "d"]
    assert made["text_offset"] == [0, 2, 2, 2, 2, 3]


def test_offsets_under_echo_begin_with_the_prompt_as_it_was_written():
    hidden = FALLBACK.token_to_id("<hidden>")
    prompt_ids, token_ids = [hidden, *ids_of(f"{MARK}b", "a")], ids_of("d", "e")
    rows = [{token_id: Logprob(-1.0, 1, "?")} for token_id in token_ids]
    body = CompletionRequest(prompt="ba", logprobs=1, echo=True)
    made = of_completion(body, "ba", prompt_ids, token_ids, "de", rows)
    assert (made["text"], made["logprobs"]["text_offset"]) == ("bade", [0, 0, 1, 2, 3])


def test_tokens_of_one_text_are_all_there():
    wrong = ids_of(b"\xff\xfe\xfd")
    rows = [{token_id: Logprob(-float(rank), rank, "\ufffd") for rank, token_id in enumerate(wrong, 1)}]
    body = CompletionRequest(prompt="a", logprobs=3)
    made = of_completion(body, "a", ids_of("a"), [wrong[1]], "\ufffd", rows)["logprobs"]
    assert made["top_logprobs"] == [{f"token_id:{wrong[0]}": -1.0, "\ufffd": -2.0, f"token_id:{wrong[2]}": -3.0}]
