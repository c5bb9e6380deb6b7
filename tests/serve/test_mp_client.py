"""The server before an engine in a process of its own: the same contract, and two processes that end together."""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from folovllm import LLM, EngineDeadError, SamplingParams
from folovllm.engine.messages import EngineCoreOutputs, SchedulerStats
from folovllm.errors import ModelLoadError
from folovllm.serving.engine_process import EngineProcess
from folovllm.serving.mp_client import MPClient
from tests.helpers import our_warnings
from tests.serve.support import Running, program, running, step_unless_all_have_begun, wait_for

ENGINE: dict[str, Any] = {"dtype": "float32", "num_kv_blocks": 256, "max_num_seqs": 4}
LONG: dict[str, Any] = {"max_tokens": 300, "extra_body": {"ignore_eos": True}}


def held_by(path: Path, engine: Any) -> None:
    """An observer, shown to the engine in its process. As long as the file is there, no request gets further than its
    first token; with "fail" in it, the engine's next step raises."""
    step = engine.core.step

    def held() -> EngineCoreOutputs:
        if not path.exists():
            return step()
        if "fail" in path.read_text("utf-8"):
            raise EngineDeadError("the device is gone")
        return step_unless_all_have_begun(engine, step)

    engine.core.step = held


@contextmanager
def apart(path: Path, engine: dict[str, Any] | None = None, **options: Any) -> Iterator[Running]:
    """`path` holds the engine while it is there."""
    llm = MPClient(EngineProcess("embedded", observers=[partial(held_by, path)], **{**ENGINE, **(engine or {})}))
    with running(llm=llm, **options) as server:
        yield server
    assert not llm._process.is_alive()


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hold") / "hold"


@pytest.fixture(scope="module")
def server(hold: Path) -> Iterator[Running]:
    with apart(hold, max_queue=1) as made:
        yield made


def figure(server: Running, name: str) -> float:
    found = re.search(rf"^vllm:{name}{{.*}} (.*)$", httpx.get(f"{server.url}/metrics").text, re.M)
    assert found is not None
    return float(found.group(1))


def is_idle(server: Running) -> bool:
    return server.llm.load() == SchedulerStats(4, 0, 0, 0) and figure(server, "kv_cache_usage_perc") == 0


def test_whole_and_streamed_answers_have_one_engine_s_tokens(server: Running) -> None:
    ask: dict[str, Any] = {"model": "embedded", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}
    alone = LLM(**ENGINE).generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    whole = server.client().completions.create(**ask)
    assert whole.choices[0].text == alone[0].outputs[0].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(alone[0].outputs[0].token_ids)
    streamed = server.client().completions.create(**ask, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_log_probabilities_of_several_and_of_the_prompt_come_through(server: Running) -> None:
    ask: dict[str, Any] = {"model": "embedded", "prompt": "One day", "n": 2, "seed": 3, "max_tokens": 8, "logprobs": 2}
    whole = server.client().completions.create(**ask)
    tokens: list[list[str]] = [[], []]
    for chunk in server.client().completions.create(**ask, stream=True):
        for choice in chunk.choices:
            assert choice.logprobs is not None
            tokens[choice.index] += choice.logprobs.tokens or []
    assert tokens == [choice.logprobs.tokens for choice in whole.choices if choice.logprobs]
    echoed = server.client().completions.create(**{**ask, "n": 1, "echo": True, "max_tokens": 2})
    assert echoed.choices[0].logprobs is not None
    values = echoed.choices[0].logprobs.token_logprobs
    assert values is not None
    assert values[0] is None
    assert None not in values[1:]


def test_a_form_is_kept(server: Running) -> None:
    answer = server.client().completions.create(
        model="embedded", prompt="A pet:", extra_body={"structured_outputs": {"choice": ["cat", "dog"]}}
    )
    assert answer.choices[0].text in ("cat", "dog")


def test_what_was_computed_is_forgotten_when_it_is_asked_for(server: Running) -> None:
    def cached() -> int:
        answer = server.client().completions.create(model="embedded", prompt=[9] * 33, max_tokens=1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    cached()
    assert cached() == 32
    httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
    assert cached() == 0


def test_who_leaves_frees_its_row_and_its_blocks(server: Running, hold: Path) -> None:
    hold.touch()
    stream = server.client().completions.create(model="embedded", prompt="a", stream=True, **LONG)
    next(iter(stream))
    assert server.llm.load().running == 1
    stream.close()
    wait_for(lambda: is_idle(server))  # it is still held: the request has not come to its end
    hold.unlink()


def test_four_run_one_waits_and_the_sixth_is_told_to_come_back(server: Running, hold: Path) -> None:
    client = server.client()
    hold.touch()
    streams = [client.completions.create(model="embedded", prompt="a", stream=True, **LONG) for _ in range(4)]
    for stream in streams:
        next(iter(stream))
    last = {"model": "embedded", "prompt": "b", "max_tokens": 2}
    waiting = threading.Thread(target=lambda: client.completions.create(**last))
    waiting.start()
    wait_for(lambda: server.llm.load() == SchedulerStats(4, 4, 1, 0))
    assert figure(server, "num_requests_waiting") == 1
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="embedded", prompt="c", max_tokens=2)
    for stream in streams:
        stream.close()
    hold.unlink()
    waiting.join()
    wait_for(lambda: is_idle(server))


def test_health_metrics_and_the_page_see_one_engine(server: Running) -> None:
    assert httpx.get(f"{server.url}/health").content == b""
    assert 'engine="0"' in httpx.get(f"{server.url}/metrics").text
    assert figure(server, "cache_config_info") == 1
    with httpx.stream("GET", f"{server.url}/live") as events:
        assert '"kv_blocks_total":256' in next(events.iter_lines())


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_an_engine_that_dies_ends_what_runs_and_nothing_more_is_taken(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what ended it."""
    hold = tmp_path / "hold"
    hold.touch()
    with apart(hold) as server:
        client = server.client()
        stream = client.completions.create(model="embedded", prompt="a", stream=True, **LONG)
        chunks = iter(stream)
        next(chunks)
        if how == "killed":
            server.llm._process.kill()
        else:
            hold.write_text("fail")
        with pytest.raises(openai.APIError, match="could not finish this request: EngineDeadError"):
            list(chunks)
        assert re.match("a request ended in EngineDeadError: the (engine's process|device)", our_warnings(caplog)[0])
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model="embedded", prompt="b", max_tokens=2)
        assert (refused.value.status_code, refused.value.code) == (503, "engine_dead")
        assert httpx.get(f"{server.url}/health").status_code == 503
        assert httpx.get(f"{server.url}/metrics").status_code == 503


def test_an_engine_that_dies_before_anyone_asks_is_missed_at_once() -> None:
    llm = MPClient(EngineProcess("embedded", **ENGINE))
    llm._process.kill()
    llm._process.join()
    assert llm.is_closed

    async def ask() -> None:
        with pytest.raises(EngineDeadError, match="the engine's process ended, with exit status -9"):
            async for _ in llm.generate([5, 6, 7], SamplingParams(max_tokens=2)):
                pass
        await llm.shutdown()

    asyncio.run(ask())


def test_what_keeps_an_engine_from_being_made_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=re.escape(str(tmp_path))):
        MPClient(EngineProcess(str(tmp_path), **ENGINE))
    with pytest.raises(ValueError, match="num_kv_blocks must be"):
        MPClient(EngineProcess("embedded", num_kv_blocks=-1))


def test_after_a_shutdown_nothing_is_taken() -> None:
    llm = MPClient(EngineProcess("embedded", **ENGINE))

    async def run() -> None:
        answer = llm.generate([5, 6, 7], SamplingParams(max_tokens=300, ignore_eos=True))
        assert not (await anext(answer)).finished
        await llm.shutdown()
        with pytest.raises(RuntimeError, match="MPClient has been shut down"):
            async for _ in answer:
                pass
        with pytest.raises(RuntimeError, match="MPClient has been shut down"):
            await anext(llm.generate([5], SamplingParams(max_tokens=2)))

    asyncio.run(run())
    assert not llm._process.is_alive()


def test_a_name_in_use_is_refused_and_the_first_request_of_that_name_goes_on() -> None:
    llm = MPClient(EngineProcess("embedded", **ENGINE))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    async def run() -> list[int]:
        first = llm.generate([5, 6, 7], params, "r")
        await anext(first)
        with pytest.raises(ValueError, match="^request_id 'r' belongs to an unfinished request: choose another$"):
            await anext(llm.generate([8, 9], params, "r"))
        with pytest.raises(ValueError, match="^request_id must not be empty, got ''$"):
            await anext(llm.generate([8, 9], params, ""))
        whole = [output.outputs[0].token_ids async for output in first][-1]
        again = [output.outputs[0].token_ids async for output in llm.generate([5, 6, 7], params, "r")][-1]
        await llm.shutdown()
        assert again == whole  # the name is free
        return whole

    alone = LLM(**ENGINE).generate([[5, 6, 7]], params, use_tqdm=False)
    assert asyncio.run(run()) == alone[0].outputs[0].token_ids


def test_a_server_that_is_killed_leaves_no_engine_behind() -> None:
    with program("--num-kv-blocks", "64") as (_, process):
        engine = engine_of(process)
        process.kill()
        process.communicate()  # until all who write there have ended
    wait_for(lambda: has_ended(engine))


def engine_of(process: subprocess.Popen[str]) -> psutil.Process:
    started = psutil.Process(process.pid).children()
    (engine,) = (each for each in started if any("spawn_main" in word for word in each.cmdline()))
    return engine


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
