"""Adapters over HTTP: one is chosen as a model is, listed beside it, loaded and unloaded where the process says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import NotFoundError

from folovllm import LLM, AsyncLLM, LoRARequest, SamplingParams
from folovllm.config import EMBEDDED_MODEL, ModelConfig
from folovllm.model_loader import get_model_and_tokenizer
from folovllm.serving.openai.adapters import FLAG
from folovllm.serving.openai.options import name_and_path
from tests.m12.adapters import SEVEN, make_adapter
from tests.serve.support import ENGINE, Running, program, running

pytestmark = pytest.mark.serve
LORA = {"enable_lora": True, "max_loras": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of two voices of the embedded model."""
    hf, _ = get_model_and_tokenizer(ModelConfig(EMBEDDED_MODEL), "cpu")
    root = tmp_path_factory.mktemp("voices")
    return {name: make_adapter(root / name, hf, SEVEN, seed) for seed, name in enumerate(("sailor", "poet"))}


@pytest.fixture(scope="module")
def said(folders: dict[str, Path]) -> dict[str, str]:
    """What each voice says, asked one by one."""
    llm = LLM(**ENGINE, **LORA)
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    requests = [None, *(LoRARequest(name, number, path) for number, (name, path) in enumerate(folders.items(), 1))]
    texts = [llm.generate("Once", greedy, lora_request=lora, use_tqdm=False)[0].outputs[0].text for lora in requests]
    return dict(zip((EMBEDDED_MODEL, *folders), texts, strict=True))


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    modules = [f"sailor={folders['sailor']}", f'{{"name": "poet", "path": "{folders["poet"]}"}}']
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(FLAG, "True")
        with running(engine=LORA, lora_modules=modules) as found:
            yield found


def ask(server: Running, model: str) -> str:
    answer = server.client().completions.create(model=model, prompt="Once", temperature=0, max_tokens=12)
    assert answer.model == model
    return answer.choices[0].text


def test_the_model_of_a_request_chooses_the_adapter(server: Running, said: dict[str, str]) -> None:
    assert len(set(said.values())) == 3
    assert {name: ask(server, name) for name in said} == said
    chunks = list(
        server.client().completions.create(model="poet", prompt="Once", temperature=0, max_tokens=12, stream=True)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == said["poet"]
    assert {chunk.model for chunk in chunks} == {"poet"}


@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
def test_each_interface_answers_in_the_adapters_name(server: Running, route: str) -> None:
    body = {"model": "sailor", "max_tokens": 4, "max_output_tokens": 4}
    body |= {"input": "Hi"} if route == "responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    body.pop("max_tokens" if route == "responses" else "max_output_tokens")
    answer = httpx.post(f"{server.url}/v1/{route}", json=body, timeout=600)
    assert (answer.status_code, answer.json()["model"]) == (200, "sailor")


def test_models_lists_adapters_below_their_base(server: Running, folders: dict[str, Path]) -> None:
    cards = {card.id: card.model_dump() for card in server.client().models.list()}
    assert list(cards) == [EMBEDDED_MODEL, "sailor", "poet"]
    assert (cards["poet"]["parent"], cards["poet"]["root"]) == (EMBEDDED_MODEL, str(folders["poet"]))
    assert server.client().models.retrieve("poet").model_dump() == cards["poet"]


def test_a_name_that_is_neither_is_not_found(server: Running) -> None:
    with pytest.raises(NotFoundError, match="the one that is served, or its adapter 'sailor', or its adapter 'poet'"):
        ask(server, "singer")


def test_an_adapter_comes_and_goes(
    server: Running, folders: dict[str, Path], said: dict[str, str], tmp_path: Path
) -> None:
    def post(what: str, **body: object) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/{what}_lora_adapter", json=body, timeout=600)

    place = shutil.copytree(folders["sailor"], tmp_path / "voice")
    answer = post("load", lora_name="guest", lora_path=str(place))
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'guest' added successfully.")
    assert ask(server, "guest") == said["sailor"]
    shutil.copytree(folders["poet"], place, dirs_exist_ok=True)
    assert "has already been loaded; set load_inplace" in post("load", lora_name="guest", lora_path=str(place)).text
    assert post("load", lora_name="guest", lora_path=str(place), load_inplace=True).status_code == 200
    assert ask(server, "guest") == said["poet"]
    answer = post("unload", lora_name="guest")
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'guest' removed successfully.")
    with pytest.raises(NotFoundError):
        ask(server, "guest")
    assert post("unload", lora_name="guest").status_code == 404
    assert "lora_path must be a folder with adapter_config.json" in post("load", lora_name="a", lora_path="/no").text
    assert "must be no name of the model itself" in post("load", lora_name=EMBEDDED_MODEL, lora_path=str(place)).text


def test_without_the_flag_nothing_is_loaded_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FLAG, raising=False)
    with running(llm=AsyncLLM(**ENGINE)) as found:
        answer = httpx.post(f"{found.url}/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "b"})
        assert answer.status_code == 404


def test_an_engine_in_a_process_of_its_own_reads_the_folder(folders: dict[str, Path], said: dict[str, str]) -> None:
    options = [
        "--enable-lora",
        "--dtype",
        "float32",
        "--lora-modules",
        *(f"{name}={at}" for name, at in folders.items()),
    ]
    with program(*options) as (url, _):
        body = {"model": "poet", "prompt": "Once", "temperature": 0, "max_tokens": 12}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=600).json()["choices"][0]["text"] == said["poet"]


def test_a_module_is_a_name_and_a_folder() -> None:
    assert name_and_path("a=b=c") == ("a", "b=c")
    for wrong in ("a", '{"name": "a"}', "{"):
        with pytest.raises(ValueError, match="lora_modules must be NAME=PATH"):
            name_and_path(wrong)
