"""The ranks' life: they are found the same or refused by name, and whatever ends one of them ends the engine with one
error, and leaves nothing.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from folovllm import LLM, EngineConfig, EngineDeadError, LLMEngine, SamplingParams
from folovllm.distributed.parallel_state import Peer
from folovllm.engine import ranks
from folovllm.models.weights import default_dtype
from folovllm.worker.follower import Follower
from tests.helpers import make_hf_folder
from tests.m9.support import GUARD, MEMORY, RankThread, together

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = [5, 77, 300]


def embedded(**kwargs: Any) -> LLM:
    options = {"skip_tokenizer_init": True, "dtype": "float32", "device": "cpu", "max_model_len": 64, **kwargs}
    return LLM(**options)


def two_ranks(**kwargs: Any) -> LLM:
    return embedded(tensor_parallel_size=2, **kwargs)


def process_of(llm: LLM) -> subprocess.Popen[bytes]:
    process = llm.engine.runner.group.links[1].process
    assert isinstance(process, subprocess.Popen)
    return process


def tokens_of(llm: LLM) -> list[int]:
    return llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids


def is_follower() -> bool:
    return threading.current_thread() is not threading.main_thread()


def step_until_it_is_dead(engine: LLMEngine, errors: list[BaseException]) -> None:
    engine.add_request("a", {"prompt_token_ids": PROMPT}, PARAMS)
    try:
        while True:
            engine.step()
    except EngineDeadError as error:
        errors.append(error)


def test_a_process_that_is_killed_in_a_step_ends_the_engine_with_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped first, so that rank 0 waits for it. A file of the current folder is no module to it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("raise SystemExit('this is no module')")
    llm = two_ranks()
    process, errors = process_of(llm), []
    assert tokens_of(llm) == tokens_of(embedded())
    os.kill(process.pid, signal.SIGSTOP)
    stepping = threading.Thread(target=step_until_it_is_dead, args=(llm.engine, errors))
    stepping.start()
    os.kill(process.pid, signal.SIGKILL)
    stepping.join(GUARD)
    assert [str(error) for error in errors] == ["rank 1 has ended with status -9; start the engine anew"]
    with pytest.raises(EngineDeadError, match="rank 1 has ended"):
        tokens_of(llm)


def test_a_rank_ends_with_its_engine(rank_threads: list[RankThread]) -> None:
    llm = two_ranks()
    assert rank_threads[0].thread.is_alive()
    del llm
    gc.collect()
    assert not rank_threads[0].thread.is_alive()
    assert rank_threads[0].error is None


def test_a_process_that_ends_before_it_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(rank: int, connection: socket.socket, *rest: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], pass_fds=[connection.fileno()])

    monkeypatch.setattr(ranks, "start_process", start)
    with pytest.raises(EngineDeadError, match="^rank 1 has ended with status 3; start the engine anew$"):
        two_ranks()


def test_what_a_rank_fails_by_while_it_loads_is_said(
    rank_threads: list[RankThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = ranks.build_model

    def fail(*args: Any, **kwargs: Any) -> Any:
        if is_follower():
            raise MemoryError("no room for the weights")
        return build(*args, **kwargs)

    monkeypatch.setattr(ranks, "build_model", fail)
    with pytest.raises(EngineDeadError, match="^rank 1 failed: MemoryError: no room for the weights; start the engine"):
        two_ranks()
    assert rank_threads[0].wait() == 1


@pytest.mark.parametrize("fact", ["version", "model", "options"])
def test_a_rank_that_is_another_is_refused_by_name(
    fact: str, rank_threads: list[RankThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts_of = ranks.facts_of
    changed = {fact: "another"}
    monkeypatch.setattr(ranks, "facts_of", lambda config: facts_of(config) | (changed if is_follower() else {}))
    with pytest.raises(EngineDeadError, match=f"^rank 1 must have the {fact} that rank 0 has, .*, got another$"):
        two_ranks()
    assert rank_threads[0].error is None  # it has gone without a word


def test_no_rank_is_started_for_a_model_that_cannot_be_cut(rank_threads: list[RankThread]) -> None:
    with pytest.raises(ValueError, match="^tensor_parallel_size must divide the model's 4 attention heads, got 10"):
        embedded(tensor_parallel_size=10**9)
    assert rank_threads == []


def test_facts_tell_folders_and_options_apart(tmp_path: Any) -> None:
    def facts(**kwargs: Any) -> dict[str, str]:
        return ranks.facts_of(EngineConfig.from_kwargs(**kwargs))

    one, other = (make_hf_folder(tmp_path, seed=seed) for seed in (0, 1))
    same, by_model, by_option = facts(model=str(one)), facts(model=str(other)), facts(model=str(one), seed=4)
    assert {name for name in same if same[name] != by_model[name]} == {"model"}
    assert {name for name in same if same[name] != by_option[name]} == {"options"}


@MEMORY  # gloo would have to meet within that second
def test_a_rank_that_hangs_is_given_up(rank_threads: list[RankThread], monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(Follower, "run", lambda self: let_go.wait(GUARD))
    monkeypatch.setattr(RankThread, "kill", lambda self: let_go.set())
    llm = two_ranks(distributed_timeout_seconds=1)
    with pytest.raises(EngineDeadError, match="^rank 1 does not answer: nothing came for 1 s; start the engine anew$"):
        tokens_of(llm)


def test_a_rank_that_hangs_is_named_with_the_limit_of_its_group() -> None:
    here, there = socket.socketpair()
    here.settimeout(60)  # distributed_timeout_seconds
    with there, here, pytest.raises(EngineDeadError, match="nothing came for 60 s"):
        Peer(here).recv(1, 0.001)


def test_an_error_of_rank_0_in_a_step_ends_the_others(
    rank_threads: list[RankThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the others are is not known any more. What fails before anything is sent costs the requests only."""
    llm = two_ranks()
    runner = llm.engine.runner

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(runner.batch, "prepare", fail)
        with pytest.raises(MemoryError):
            tokens_of(llm)
    assert tokens_of(llm) == tokens_of(embedded())
    monkeypatch.setattr(runner.model.model, "forward", fail)
    with pytest.raises(EngineDeadError, match="^a step failed in its middle"):
        tokens_of(llm)
    assert rank_threads[0].wait() == 0


def torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


def test_ranks_meet_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    torchruns(monkeypatch)
    met = together([lambda rank=rank: ranks.meet_under_torchrun(rank, 3, GUARD) for rank in range(3)])
    assert [sorted(links) for links, _ in met] == [[1, 2], [0], [0]]
    for rank in (1, 2):
        met[rank][0][0].send([rank])
        assert met[0][0][rank].receive(GUARD) == [rank]
        assert met[0][0][rank].connection.getsockname()[0] == "127.0.0.1"


STRANGERS = [b"", b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\x01" + bytes(7) + b"1", b"\x01" + bytes(7) + b"[",
             b"1", b"0" * 64 + b"         1", b"GET / HTTP/1.1\r\n\r\n", bytes(1 << 16)]  # fmt: skip


@pytest.mark.parametrize("goes", [True, False], ids=["gone", "silent"])
def test_strangers_that_call_under_torchrun_are_dropped(goes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come before the ranks do, and more of them than are waited for."""
    torchruns(monkeypatch)
    monkeypatch.setattr(ranks, "MOST_CALLERS", 4)
    listen, callers = socket.create_server, []

    def server(*args: Any) -> socket.socket:
        listener = listen(*args)
        for said in STRANGERS:
            callers.append(socket.create_connection(listener.getsockname()))
            callers[-1].sendall(said)
            if goes:
                callers[-1].shutdown(socket.SHUT_WR)
        return listener

    with monkeypatch.context() as patch:
        patch.setattr(ranks.socket, "create_server", server)
        met = together([lambda rank=rank: ranks.meet_under_torchrun(rank, 3, GUARD) for rank in range(3)])
    assert [sorted(links) for links, _ in met] == [[1, 2], [0], [0]]
    for rank in (1, 2):
        met[rank][0][0].send([rank])
        assert met[0][0][rank].recv(rank, GUARD) == [rank]
    for caller in callers:
        with suppress(ConnectionResetError):
            assert caller.recv(1) == b""


@pytest.mark.parametrize("said", [b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\x01" + bytes(7) + b"["])
def test_what_is_no_message_ends_the_engine_with_one_error(said: bytes) -> None:
    ours, theirs = map(Peer, socket.socketpair())
    theirs.connection.sendall(said)
    with pytest.raises(EngineDeadError, match="^rank 1 sends what is no message; start the engine anew$"):
        ours.recv(1, GUARD)


def test_a_rank_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    torchruns(monkeypatch)
    monkeypatch.setattr(ranks, "PATIENCE", 1)
    with pytest.raises(EngineDeadError, match="^not all of 2 ranks came within 1 s: "):
        ranks.meet_under_torchrun(0, 2, 1)


def test_torchrun_must_have_started_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="^tensor_parallel_size must be WORLD_SIZE, 4, under torchrun, got 2"):
        two_ranks()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernels", ["yes", "no"])
def test_processes_of_torchruns(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1's program comes no further than to its LLM, and ends with rank 0's."""
    torchruns(monkeypatch)
    program = (
        "from folovllm import LLM, SamplingParams; llm = LLM(tensor_parallel_size=2, dtype='float32', device='cpu', "
        f"skip_tokenizer_init=True, max_model_len=64); print(llm.generate({PROMPT}, SamplingParams(temperature=0, "
        "max_tokens=8, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "FOLOVLLM_CPU_KERNELS": kernels},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=GUARD)[0] for process in processes]
    assert said == [f"{tokens_of(embedded())}\n", ""]
    assert [process.returncode for process in processes] == [0, 0]


def test_threads_that_build_models_leave_torchs_default_dtype() -> None:
    """Of two engines, or of two ranks here: one enters while the other is inside, and leaves after it."""
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with default_dtype(torch.bfloat16):
            entered.set()
            left.wait(GUARD)

    thread = threading.Thread(target=other)
    with default_dtype(torch.float16):
        thread.start()
        entered.wait(0.05)  # it does not, unless it is wrong
        assert torch.get_default_dtype() == torch.float16
    left.set()
    thread.join(GUARD)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.exhaustive
def test_ranks_end_when_rank_0_is_killed() -> None:
    """Even with SIGKILL, after which it can tell nobody: their sockets close."""
    program = (
        "from folovllm import LLM; llm = LLM(tensor_parallel_size=2, dtype='float32', device='cpu', max_model_len=64); "
        "print(llm.engine.runner.group.links[1].process.pid, flush=True); input()"
    )
    pipe = subprocess.PIPE
    rank_0 = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)
    assert rank_0.stdout is not None
    other = psutil.Process(int(rank_0.stdout.readline()))
    rank_0.kill()
    rank_0.communicate()
    other.wait(GUARD)
