"""Vectors, labels and scores over HTTP: openai's client and plain requests get what LLM makes of the same folder."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import BadRequestError, NotFoundError

from folovllm import LLM, LoRARequest, PoolingParams
from tests.m11.pooling_support import add_modules, close, make_folder
from tests.m12.adapters import SEVEN, make_adapter
from tests.serve.support import Running, running
from tests.serve.test_run_batch import answers, begin, line

TEXTS = ["a cat", "a dog sat on a mat", "x"]
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_kv_blocks": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embeds")
    hf = make_folder(folder / "model")
    make_adapter(folder / "voice", hf, SEVEN)
    return add_modules(folder / "model", {"pooling_mode": "mean"}, "Normalize")


@pytest.fixture(scope="module")
def embeds(folder: Path) -> Iterator[Running]:
    engine = {"model": str(folder), "enable_lora": True, "max_num_seqs": 8, **PLAIN}
    with running(engine=engine, served_model_name="m", lora_modules=[f"voice={folder.parent / 'voice'}"]) as made:
        yield made


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("scores")
    make_folder(folder, "ForSequenceClassification", num_labels=1)
    with running(engine={"model": str(folder), **PLAIN}, served_model_name="m") as made:
        yield made


def wanted(folder: Path, inputs: Any, params: PoolingParams | None = None, **options: Any) -> torch.Tensor:
    outputs = LLM(str(folder), **PLAIN, **options).embed(inputs, pooling_params=params)
    return torch.tensor([output.outputs.embedding for output in outputs])


def post(server: Running, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=600)


@pytest.mark.parametrize("asked", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_openais_client_gets_the_engines_vectors(embeds: Running, folder: Path, asked: dict[str, Any]) -> None:
    """Where nothing is said it asks for base64, and decodes that."""
    found = embeds.client().embeddings.create(model="m", input=TEXTS, **asked)
    vectors: Any = [each.embedding for each in found.data]
    if "base64" in asked.values():
        vectors = [struct.unpack(f"<{64}f", base64.b64decode(each)) for each in vectors]
    close(vectors, wanted(folder, TEXTS), 1e-6)
    assert [each.index for each in found.data] == [0, 1, 2]
    num_tokens = sum(len(text.encode()) for text in TEXTS)
    assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("m", num_tokens, num_tokens)


def test_token_ids_dimensions_and_an_adapter(embeds: Running, folder: Path) -> None:
    client = embeds.client()
    found = client.embeddings.create(model="m", input=[[1, 2, 3], [4]], dimensions=8)
    close([each.embedding for each in found.data], wanted(folder, [[1, 2, 3], [4]], PoolingParams(8)), 1e-6)
    found = client.embeddings.create(model="voice", input=[1, 2, 3])
    llm = LLM(str(folder), enable_lora=True, **PLAIN)
    (own,) = llm.embed([1, 2, 3], lora_request=LoRARequest("voice", 1, str(folder.parent / "voice")))
    close([found.data[0].embedding], torch.tensor([own.outputs.embedding]), 1e-6)
    assert found.model == "voice"


def test_pairs_are_scored_and_ranked(embeds: Running, scores: Running) -> None:
    for server in (embeds, scores):
        llm = LLM(server.llm.engine.model_config.model, **PLAIN)
        expected = [output.outputs.score for output in llm.score("a cat", TEXTS)]
        body = post(server, "/v1/score", queries="a cat", documents=TEXTS).json()
        assert [each["score"] for each in body["data"]] == pytest.approx(expected, abs=1e-5)
        for names in (("text_1", "text_2"), ("data_1", "data_2")):
            again: dict[str, Any] = dict(zip(names, ("a cat", TEXTS), strict=True))
            assert post(server, "/v1/score", **again).json()["data"] == body["data"]
        ranked = post(server, "/v1/rerank", query="a cat", documents=TEXTS, top_n=2).json()["results"]
        best = sorted(range(3), key=expected.__getitem__, reverse=True)[:2]
        assert [(each["index"], each["document"]["text"]) for each in ranked] == [(at, TEXTS[at]) for at in best]
        assert ranked[0]["relevance_score"] == pytest.approx(max(expected), abs=1e-5)


def test_a_chat_template_writes_a_pair(tmp_path: Path) -> None:
    make_folder(tmp_path, "ForSequenceClassification", num_labels=1)
    template = (
        "{{ instruction }}{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}{# query, document #}"
    )
    with running(engine={"model": str(tmp_path), **PLAIN}, chat_template=template) as made:
        got = post(made, "/v1/score", queries="q", documents="d", chat_template_kwargs={"instruction": "do: "}).json()
    llm = LLM(str(tmp_path), **PLAIN)
    (expected,) = llm.classify("do: <q>q<d>d")
    assert got["data"][0]["score"] == pytest.approx(expected.outputs.score, abs=1e-6)
    assert got["usage"]["prompt_tokens"] == len("do: <q>q<d>d")


def test_labels_have_their_names(tmp_path: Path) -> None:
    names = ["dry", "wet", "hot"]
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}
    make_folder(tmp_path, "ForSequenceClassification", **labels)
    with running(engine={"model": str(tmp_path), **PLAIN}) as made:
        found = post(made, "/classify", input=TEXTS).json()["data"]
    expected = [output.outputs.probs for output in LLM(str(tmp_path), **PLAIN).classify(TEXTS)]
    for each, probs in zip(found, expected, strict=True):
        assert each["probs"] == pytest.approx(probs, abs=1e-6)
        assert (each["label"], each["num_classes"]) == (names[probs.index(max(probs))], 3)


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/embeddings", {"input": []}, 400, "input must not be empty"),
        ("/v1/embeddings", {"input": "x" * 65}, 400, "prompt has 65 tokens, but max_model_len is 64"),
        ("/v1/embeddings", {"input": "x", "dimensions": 65}, 400, "dimensions must be at most 64, got 65"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, 400, "encoding_format must be"),
        ("/v1/embeddings", {"input": "x", "model": "other"}, 404, "model must be 'm'"),
        ("/v1/embeddings", {"input": "x", "truncate_prompt_tokens": 4}, 400, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": [999]}, 400, "prompt_token_ids must be in"),
        ("/classify", {"input": "x"}, 400, "task must be one of 'embed', got 'classify'"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["c"]}, 400, "data_1 must be one text"),
        ("/v1/score", {"queries": "a"}, 400, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400, "top_n must be"),
        ("/v1/completions", {"prompt": "x"}, 400, "runner must be 'generate' to draw tokens"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(
    embeds: Running, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    answer = post(embeds, path, **body)
    assert answer.status_code == status
    assert text in answer.json()["error"]["message"]
    assert embeds.is_idle()


def test_a_server_of_a_model_that_draws_tokens_says_so(server: Running) -> None:
    with pytest.raises(BadRequestError, match="runner must be 'pooling' for embeddings, labels and scores"):
        server.client().embeddings.create(model="embedded", input="x")
    with pytest.raises(NotFoundError):
        server.client().embeddings.create(model="other", input="x")


def test_what_came_is_counted(embeds: Running) -> None:
    before = httpx.get(f"{embeds.url}/metrics").text
    embeds.client().embeddings.create(model="m", input=TEXTS)
    after = httpx.get(f"{embeds.url}/metrics").text

    def count(text: str, name: str) -> float:
        return sum(float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(f"vllm:{name}{{"))

    assert count(after, "request_success_total") - count(before, "request_success_total") == 3
    assert count(after, "generation_tokens_total") == 0


def test_run_batch_embeds_as_a_server(embeds: Running, folder: Path, tmp_path: Path) -> None:
    asked = {"input": TEXTS, "encoding_format": "base64"}
    lines = [line("a", asked, "/v1/embeddings"), line("b", {"query": "a cat", "documents": TEXTS}, "/v1/rerank")]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    with begin(source, target, "--model", str(folder), "--max-model-len", "64") as process:
        assert process.wait() == 0, process.communicate()[1]
    found = {each["custom_id"]: each["response"]["body"] for each in answers(target)}
    assert found["a"]["data"] == post(embeds, "/v1/embeddings", **asked).json()["data"]
    assert json.dumps(found["b"]["results"]) == json.dumps(
        post(embeds, "/v1/rerank", query="a cat", documents=TEXTS).json()["results"]
    )
