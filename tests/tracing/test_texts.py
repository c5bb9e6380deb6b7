"""Texts of a trace: decoded when a page is made, piece by piece, and data to the last character."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest

from folovllm import LLM, SamplingParams
from folovllm.entrypoints.cli.main import main
from folovllm.tracing.attach import TraceFile
from folovllm.tracing.page import make_page
from folovllm.tracing.reader import read_trace
from folovllm.tracing.texts import NoTextsError, find_tokenizer, texts_of
from tests.tracing.support import Simulated

HOSTILE = "</script><script>alert(1)</script><!-- {{SCRIPT}} &amp; \u2028"


class Words:
    """Each token is a word; the last one is no friend."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(HOSTILE if token_id == 7 else f" w{token_id}" for token_id in token_ids)


def test_texts_are_those_that_the_user_got(tmp_path) -> None:
    """Two answers to a text, and one to token ids."""
    trace_file = TraceFile(tmp_path / "run.gz")
    llm = LLM(observers=[trace_file], dtype="float32")
    prompts = ["Once upon a time", llm.get_tokenizer().encode("The little fox")]
    params = [SamplingParams(n=2, max_tokens=9, seed=0), SamplingParams(max_tokens=5, temperature=0)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    trace_file.close()
    trace = read_trace(tmp_path / "run.gz")
    texts = texts_of(trace, find_tokenizer(trace))
    assert texts.prompts == {0: "Once upon a time", 1: "The little fox"}
    got = sorted("".join(said.pieces) for said in texts.said.values())
    assert got == sorted(answer.text for output in outputs for answer in output.outputs)
    assert all(said.steps == list(range(len(said.pieces))) for said in texts.said.values())


def test_a_beam_has_no_text(tmp_path) -> None:
    trace_file = TraceFile(tmp_path / "run.gz")
    llm = LLM(observers=[trace_file], dtype="float32")
    llm.generate("Once", SamplingParams(use_beam_search=True, best_of=2, temperature=0, max_tokens=4), use_tqdm=False)
    trace_file.close()
    trace = read_trace(tmp_path / "run.gz")
    assert texts_of(trace, find_tokenizer(trace)).said == {}


def test_texts_in_a_page_are_data_only(tmp_path) -> None:
    load = Simulated(tmp_path / "sim.gz")
    load.add(HOSTILE, [7] * 3, 2)
    load.run()
    trace = read_trace(tmp_path / "sim.gz")
    page = make_page([trace], [texts_of(trace, Words())])
    assert page.count("<script") == page.count("</script>") == 2
    (data,) = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])  # type: ignore[index]
    assert data["texts"] == {"0": {"runs": [0, 2], "pieces": [HOSTILE, HOSTILE]}}
    assert (data["requests"][0]["id"], data["requests"][0]["prompt"]) == (HOSTILE, HOSTILE * 3)


@pytest.mark.parametrize(
    ("name", "text"),
    [(None, "tokenizer 'none' of trace sim.gz is no folder here"), ("no/such", "tokenizer 'no/such'")],
)
def test_a_tokenizer_is_looked_for_on_this_machine_only(tmp_path, name, text) -> None:
    """A trace may come from anybody, and names what it likes."""
    load = Simulated(tmp_path / "sim.gz")
    load.add("a", [1], 1)
    load.run()
    with pytest.raises(NoTextsError, match=text):
        find_tokenizer(read_trace(tmp_path / "sim.gz"), name)


def test_a_page_without_texts_says_why(tmp_path, capsys) -> None:
    trace_file = TraceFile(tmp_path / "run.gz", texts=False)
    llm = LLM(observers=[trace_file], dtype="float32")
    llm.generate("Once", SamplingParams(max_tokens=2, temperature=0), use_tqdm=False)
    trace_file.close()
    assert main(["trace", "view", str(tmp_path / "run.gz")]) == 0
    assert "without texts: trace run.gz was written without texts" in capsys.readouterr().err
    assert main(["trace", "view", str(tmp_path / "run.gz"), "--tokenizer", "embedded"]) == 2
    assert "--trace-texts writes them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["generate", "x", "--no-trace-texts"], "--trace-texts must be given with a trace: add --trace FILE"),
        (["trace", "view", "x", "--no-texts", "--tokenizer", "y"], "must not be given together"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(capsys, arguments, text) -> None:
    with suppress(SystemExit):  # argparse ends so
        assert main(arguments) == 2
    assert text in capsys.readouterr().err


def test_texts_must_be_a_bool(tmp_path) -> None:
    with pytest.raises(ValueError, match="texts must be"):
        TraceFile(tmp_path / "x.gz", texts="yes")  # type: ignore[arg-type]
