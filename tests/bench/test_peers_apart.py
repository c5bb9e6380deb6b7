"""Peers in an environment of their own: our weights reach them, a missing one is named and the others go on.

Where FOLOVLLM_LLAMA_CPP_PYTHON or FOLOVLLM_OPENVINO_PYTHON names a Python that has the peer, it has to say what Hugging
Face says of the same weights. nano-vLLM needs a GPU: a stand-in with its names answers in a real second process, so
that the pipe, the counting and the errors are run. What nano-vLLM itself makes of it is not.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from folovllm.bench import pipe
from folovllm.bench.peers.apart import Apart, Kind, PeerMissingError, PeerSetup, environment
from folovllm.bench.peers.registry import LLAMA_CPP, PEERS, make_llama_cpp, make_peers
from folovllm.bench.workload import BenchModel
from folovllm.entrypoints.cli.main import main
from tests.bench.support import bench_report
from tests.helpers import hf_greedy, make_hf_folder, make_hf_model
from workshop.bench.peers import exported
from workshop.bench.peers.exported import GGUF, OPENVINO, export_weights
from workshop.bench.peers.nano_vllm import NANO_VLLM
from workshop.bench.peers.workers import gguf_file

PROMPTS, COUNTS = [[7, 3, 9, 1], list(range(40, 71)), [200, 5]], [8, 5, 9]
INSTALLED = [kind for kind in (LLAMA_CPP, OPENVINO) if os.environ.get(kind.variable)]
MEASURE = ["throughput", "--shape", "qwen3-tiny", "--dtype", "float32", "--device", "cpu", "--rounds", "1",
           "--num-requests", "2", "--input-len", "4", "--output-len", "3"]  # fmt: skip


def setup_of(folder: Path, dtype: str = "float32") -> PeerSetup:
    return PeerSetup(BenchModel("tiny", str(folder), "auto"), dtype, "cpu", 64, len(PROMPTS), 1)


@pytest.mark.skipif(not INSTALLED, reason="no variable names a Python that has llama.cpp or OpenVINO")
@pytest.mark.parametrize("kind", INSTALLED, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("model", "tied"), [("qwen3", True), ("llama", False), ("qwen2", True)])
def test_an_installed_peer_says_what_hugging_face_says(kind: Kind, model: str, tied: bool, tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path, model, tie_word_embeddings=tied)
    oracle = make_hf_model(model, tie_word_embeddings=tied)
    setup = setup_of(folder)
    with setup.cleanup:
        (peer,) = PEERS[kind.name](setup)
        assert isinstance(peer, Apart)
        tokens, run = peer.generate(PROMPTS, COUNTS)
    assert tokens == [hf_greedy(oracle, prompt, count) for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
    assert run.tokens == sum(COUNTS)
    assert run[0].prefill
    assert all(step.seconds > 0 for step in run)


@pytest.mark.skipif(not INSTALLED, reason="no variable names a Python that has llama.cpp or OpenVINO")
@pytest.mark.parametrize("kind", INSTALLED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_installed_peer_is_measured_beside_ours(kind: Kind, dtype: str, tmp_path: Path) -> None:
    data = bench_report([*MEASURE, "--dtype", dtype, "--peer", kind.name, "--mixed"], tmp_path / "x.json")
    assert [row["engine"] for row in data["rows"]] == ["folovllm", kind.name]
    assert data["rows"][1]["speedup"] > 0


@pytest.mark.parametrize(
    "kind",
    [pytest.param(GGUF, marks=pytest.mark.exhaustive, id="llama-cpp"), pytest.param(OPENVINO, id="openvino")],
)
def test_a_missing_peer_is_named_with_the_way_to_it_and_ours_is_measured(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kind.variable, sys.executable)  # a Python that has it not
    data = bench_report([*MEASURE, "--peer", f"{kind.name},nano-vllm,hf"], tmp_path / "x.json")
    assert [row["engine"] for row in data["rows"]] == ["folovllm", "hf"]
    notes = " ".join(data["notes"])
    assert f"{kind.name} is not here: " in notes
    assert f"pip install {kind.install}; then set {kind.variable}=" in notes
    assert "nano-vllm is not here: nano-vLLM runs on CUDA only, and this benchmark on cpu" in notes


def test_without_a_variable_the_peer_may_be_in_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LLAMA_CPP.variable, raising=False)
    monkeypatch.setattr("folovllm.bench.peers.apart.find_spec", lambda name: None if name == "llama_cpp" else object())
    with pytest.raises(PeerMissingError, match=r"this Python has no llama_cpp; .*FOLOVLLM_LLAMA_CPP_PYTHON=FOLDER"):
        LLAMA_CPP.find_python()
    monkeypatch.setattr("folovllm.bench.peers.apart.find_spec", lambda name: object())
    assert LLAMA_CPP.find_python() == sys.executable


def test_a_variable_that_names_no_program_is_an_error_and_not_a_missing_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LLAMA_CPP.variable, "/no/such/python")
    assert main(["bench", *MEASURE, "--peer", "llama-cpp"]) == 2
    assert "FOLOVLLM_LLAMA_CPP_PYTHON must be a Python that can be run" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("name", ["llama-cpp", "openvino"])
def test_a_peer_for_cpus_is_refused_where_ours_runs_on_a_gpu(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"peer must be one that runs on cuda, got '{name}'"):
        PEERS[name](PeerSetup(BenchModel("tiny", str(tmp_path), "auto"), "float32", "cuda", 64, 1, 1))


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias"),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
    ],
)
def test_a_tensor_is_called_what_gguf_calls_it(name: str, expected: str) -> None:
    assert gguf_file.gguf_name(name) == expected


def test_a_llamas_q_and_k_are_rotated_by_neighbours_and_a_qwens_by_halves() -> None:
    config = {"num_attention_heads": 1, "num_key_value_heads": 1}
    rows, name = torch.arange(8).view(8, 1).numpy(), "model.layers.0.self_attn.k_proj.weight"
    llama = gguf_file.reorder(rows, name, {**config, "model_type": "llama"})
    assert llama.ravel().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert gguf_file.reorder(rows, name, {**config, "model_type": "qwen3"}) is rows
    assert gguf_file.reorder(rows, name.replace("k_proj", "v_proj"), {**config, "model_type": "llama"}) is rows


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model_type": "mamba"}, "model must be a llama, qwen2 or qwen3 for a GGUF file, got 'mamba'"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}}, "rope_type must be 'default'"),
    ],
)
def test_what_would_become_another_model_is_refused(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gguf_file.architecture(config)


def test_how_our_threads_wait_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("folovllm.bench.peers.apart.wait_policy", lambda: "GOMP_SPINCOUNT=5000, set by folovllm")
    monkeypatch.setenv("GOMP_SPINCOUNT", "5000")
    assert "GOMP_SPINCOUNT" not in environment(3)
    assert environment(3)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr("folovllm.bench.peers.apart.wait_policy", lambda: "GOMP_SPINCOUNT=5000, from the environment")
    assert environment(3)["GOMP_SPINCOUNT"] == "5000"


# llama.cpp, by a stand-in: what its engine file says of a GGUF file, and which it refuses.

LLAMA_FAKE = '''
"""The C functions that are called before a context is made. Its file has 2 layers, 64 numbers a token, 256 tokens."""
import types

__version__ = "0.0.stand-in"
llama_backend_init = lambda: None
llama_model_default_params = lambda: None
llama_model_load_from_file = lambda path, params: path
llama_model_get_vocab = lambda model: model
llama_vocab_n_tokens = lambda vocab: 256
llama_model_n_layer = lambda model: 2
llama_model_n_embd = lambda model: 64
llama_context_default_params = types.SimpleNamespace
llama_init_from_model = lambda model, options: options
llama_batch_init = lambda *sizes: types.SimpleNamespace()


def llama_model_meta_val_str(model, key, text, size):
    assert key == b"general.file_type" and size == 64
    text.value = open(model, "rb").read()
'''


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerSetup:
    """A setup whose GGUF file holds its file type and nothing else."""
    (tmp_path / "llama_cpp.py").write_text(LLAMA_FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(LLAMA_CPP.variable, sys.executable)
    setup = setup_of(make_hf_folder(tmp_path, "qwen3"))
    setup.gguf = str(tmp_path / "x.gguf")
    return setup


@pytest.mark.parametrize(
    ("file_type", "dtype"),
    [("0", "float32"), ("1", "float16"), ("32", "bfloat16"), ("2", "Q4_0"), ("15", "GGUF file type 15")],
)
def test_a_gguf_files_own_dtype_is_shown(file_type: str, dtype: str, llama: PeerSetup) -> None:
    Path(llama.gguf or "").write_text(file_type)
    with llama.cleanup:
        (peer,) = make_llama_cpp(llama)
        assert isinstance(peer, Apart)
        assert (peer.dtype, peer.version) == (dtype, "0.0.stand-in")


def test_a_gguf_file_of_another_model_is_refused(llama: PeerSetup, tmp_path: Path) -> None:
    Path(llama.gguf or "").write_text("0")
    llama.model = BenchModel("other", str(make_hf_folder(tmp_path / "other", "qwen3", num_hidden_layers=3)), "auto")
    text = r"gguf must have the model's layers, hidden size and vocabulary, \[3, 64, 256\], got \[2, 64, 256\]"
    with llama.cleanup, pytest.raises(RuntimeError, match=text):
        make_llama_cpp(llama)


def test_llama_cpp_without_a_gguf_file_says_how_to_give_one(llama: PeerSetup) -> None:
    llama.gguf = None
    with pytest.raises(ValueError, match="gguf must be the file of the same model .*got None; give --gguf FILE"):
        make_llama_cpp(llama)


@pytest.mark.parametrize(
    ("quantization", "kind", "dtype"), [(None, None, "bfloat16"), ("w4a16", "Q4_0", "Q4_0"), ("w8a8", "Q8_0", "Q8_0")]
)
def test_the_workshop_writes_the_file_where_none_is_given(
    quantization: str | None, kind: str | None, dtype: str, llama: PeerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, llama.gguf, llama.quantization = Path(llama.gguf or ""), None, quantization

    def write(folder: Path, python: str, wanted: str | None) -> str:
        assert wanted == kind
        file.write_text({"bfloat16": "32", "Q4_0": "2", "Q8_0": "7"}[dtype])
        return str(file)

    monkeypatch.setattr(exported, "write_gguf", write)
    with llama.cleanup:
        (peer,) = PEERS["llama-cpp"](llama)
        assert isinstance(peer, Apart)
        assert (peer.dtype, llama.gguf) == (dtype, str(file))


def test_llama_cpp_makes_the_quantised_file_and_the_first_one_goes(tmp_path: Path, monkeypatch: Any) -> None:
    asked = []

    def make(source: bytes, out: bytes, settings: Any) -> int:
        asked.append((Path(source.decode()).read_text(), settings._obj.ftype))
        Path(out.decode()).write_text("four bits")
        return 0

    class Settings(ctypes.Structure):
        _fields_ = (("ftype", ctypes.c_int),)

    lib = SimpleNamespace(llama_model_quantize=make, llama_model_quantize_default_params=Settings)
    monkeypatch.setattr(gguf_file, "import_module", lambda name: lib)
    (tmp_path / "model.gguf").write_text("sixteen")
    assert gguf_file.quantize(str(tmp_path / "model.gguf"), "Q4_0") == str(tmp_path / "Q4_0.gguf")
    assert asked == [("sixteen", 2)]
    assert [file.name for file in tmp_path.iterdir()] == ["Q4_0.gguf"]
    lib.llama_model_quantize = lambda *arguments: 1
    with pytest.raises(RuntimeError, match=r"could not make Q8_0 of .*Q4_0\.gguf"):
        gguf_file.quantize(str(tmp_path / "Q4_0.gguf"), "Q8_0")


def test_a_model_that_gguf_lacks_is_told_by_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gguf.py").write_text("GGUFWriter = None")
    (tmp_path / "weights.json").write_text('{"config": {"model_type": "mamba"}, "tensors": []}')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"could not be written: ValueError: model must be a llama.*got 'mamba'"):
        exported.write_gguf(tmp_path, sys.executable)


# nano-vLLM, by a stand-in.

FAKE = '''
"""What nano_vllm_engine.py uses of nano-vLLM: one prefill for all that wait, then a token of each. Token n is n."""
import collections, types

SamplingParams = types.SimpleNamespace
print("nano-vLLM prints to stdout whenever it likes")


class LLM:
    def __init__(self, model, **settings):
        if settings["max_num_seqs"] > 8:
            raise MemoryError("no block left")
        self.scheduler = types.SimpleNamespace(waiting=collections.deque(), running=collections.deque())
        self.number = 0

    def add_request(self, prompt, params):
        assert params.ignore_eos and 1e-10 < params.temperature < 1e-6
        seq = types.SimpleNamespace(number=self.number, prompt=prompt, limit=params.max_tokens, tokens=[])
        seq.num_completion_tokens = 0
        self.number += 1
        self.scheduler.waiting.append(seq)

    def is_finished(self):
        return not (self.scheduler.waiting or self.scheduler.running)

    def step(self):
        scheduler = self.scheduler
        counted = sum(len(seq.prompt) for seq in scheduler.waiting) or -len(scheduler.running)
        batch = list(scheduler.waiting or scheduler.running)
        scheduler.running.extend(scheduler.waiting)
        scheduler.waiting.clear()
        for seq in batch:
            seq.tokens.append(len(seq.tokens))
            seq.num_completion_tokens += 1
        done = [seq for seq in batch if len(seq.tokens) == seq.limit]
        for seq in done:
            scheduler.running.remove(seq)
        return [(seq.number, seq.tokens) for seq in reversed(done)], counted
'''


def nano(setup: PeerSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seqs: int = 2) -> Apart:
    (tmp_path / "nanovllm.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(NANO_VLLM.variable, sys.executable)
    return Apart(NANO_VLLM, setup, model=str(tmp_path), max_model_len=64, max_num_seqs=seqs)


def test_a_peer_apart_counts_first_tokens_with_the_prefill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "SECONDS_TO_END", 600.0)
    setup = setup_of(tmp_path)
    with setup.cleanup:
        peer = nano(setup, tmp_path, monkeypatch)
        tokens, run = peer.generate([[5, 6, 7], [8]], [2, 3])
        assert tokens == [[0, 1], [0, 1, 2]]
        assert [(step.tokens, step.prefill) for step in run] == [(2, True), (2, False), (1, False)]
        assert peer.run([[1]], [2]).tokens == 2  # and again, in the same process
    assert peer.pipe.process.poll() == 0


def test_a_peer_apart_that_fails_to_load_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setup_of(tmp_path)
    with setup.cleanup, pytest.raises(RuntimeError, match="nano-vllm failed: MemoryError: no block left"):
        nano(setup, tmp_path, monkeypatch, seqs=9)


def test_nano_vllm_wants_a_gpu_and_a_folder(tmp_path: Path) -> None:
    shape = PeerSetup(BenchModel("tiny", str(tmp_path), "dummy"), "float32", "cuda", 64, 1, 1)
    with pytest.raises(ValueError, match="model must be a folder with weights and a tokenizer"):
        PEERS["nano-vllm"](shape)
    assert make_peers(["nano-vllm"], setup_of(tmp_path), lambda text: None) == (
        [],
        ["nano-vllm is not here: nano-vLLM runs on CUDA only, and this benchmark on cpu"],
    )
