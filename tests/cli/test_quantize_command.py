"""What `folovllm quantize` refuses, and that it leaves nothing behind then."""

from __future__ import annotations

import json
import resource
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from folovllm.entrypoints.cli.main import main
from folovllm.quantize.folder import PART, new_folder
from folovllm.quantize.layerwise import EMBEDDED_TEXT, quantize
from folovllm.quantize.recipe import Recipe
from folovllm.utils.checks import describe
from tests.helpers import add_byte_tokenizer, make_hf_folder
from tests.m7.support import FOLDERS


@pytest.fixture
def source(tmp_path):
    folder = make_hf_folder(tmp_path, "qwen3", vocab_size=260, dtype=torch.bfloat16)
    add_byte_tokenizer(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Once upon a time there was a weight. " * 80)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gtpq"}, "method must be one of 'rtn', 'gptq', 'awq', got 'gtpq'; did you mean 'gptq'?"),
        ({"bits": 3}, "bits must be 4 or 8, got 3"),
        ({"group_size": 100}, "group_size must be a multiple of 8, or -1 for a row at a time, got 100"),
        ({"smoothquant": 0.5}, "smoothquant must be left out without w8a8: it is for activations, got 0.5"),
        (
            {"w8a8": True, "method": "awq"},
            "method must be rtn or gptq with w8a8, got 'awq'; smoothquant scales channels there",
        ),
        ({"w8a8": True, "bits": 4}, "bits must be 8 with w8a8, got 4; leave it out"),
        (
            {"w8a8": True, "group_size": 32},
            "group_size must be -1 with w8a8, a scale for each output, got 32; leave it out",
        ),
        ({"w8a8": True, "smoothquant": 1.5}, "smoothquant must be in [0, 1], got 1.5"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ValueError) as refused:
        Recipe.from_options(**options)
    assert str(refused.value) == message


def refused(tmp_path, *argv, capsys):
    """The one line that it ends in. What lay in tmp_path still does, and nothing else."""
    before = sorted(tmp_path.rglob("*"))
    assert main(["quantize", *map(str, argv)]) == 2
    assert sorted(tmp_path.rglob("*")) == before
    return capsys.readouterr().err.splitlines()[-1].removeprefix("error: ")


SOME = "--calibration text --group-size 32"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (f"source source {SOME}",
         "out must be a new or an empty folder, got {source}; there is something in it; name a new folder"),
        (f"source text {SOME}", "out must be a folder, got {text}; this is a file; name a new folder"),
        (f"source no/such {SOME}", "out must be in a folder that is there, got {no/such}"),
        (f"awq out {SOME}",
         "model must not be quantised already, got {awq}; it is, by 'awq': name what it was made from"),
        ("source out --calibration text --group-size 40",
         "group_size must divide the inputs of each layer (64, 96), got 40; 32 or 16 or 8 or -1 would do"),
        ("source out --group-size 32",
         "calibration must be a text file where the model is not 'embedded', got None; give some hundred kilobytes of "
         "what the model will be asked"),
        ("source out --calibration none --group-size 32",
         "calibration must be a file that can be read, got {none}; No such file or directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_and_changes_nothing(tmp_path, source, text, argv, message, capsys):
    places = {"source": source, "text": text, "awq": FOLDERS / "awq"}
    places |= {name: tmp_path / name for name in ("out", "no/such", "none")}
    for name, path in places.items():
        named = repr(str(path)) if name == "none" else describe(str(path))  # a file's name is shown whole
        message = message.replace(f"{{{name}}}", named)
    assert refused(tmp_path, *(places.get(word, word) for word in argv.split()), capsys=capsys) == message


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"short", "it has 5 in 1; take more"),
        ("a.txt", b"x" * 2000, "must have at least 2,048 tokens, and 4 windows of up to 512, got"),
        ("a.jsonl", b'{"text": "%s"}' % (b"x" * 9000), ""),
        ("a.txt", b"\xff\xfe" * 2000, "must be UTF-8 text, got"),
        ("a.jsonl", b"{}\n", "line 1 is {}"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', "line 2 is {'text': 3}"),
        ("a.jsonl", b"\nno\n", "line 2 is not JSON"),
    ],
)
def test_a_text_that_is_none(tmp_path, source, name, data, message, capsys):
    path = tmp_path / name
    path.write_bytes(data)
    if not message:  # long enough
        assert (
            main(["quantize", str(source), str(tmp_path / "out"), "--group-size", "32", "--calibration", str(path)])
            == 0
        )
        return
    found = refused(tmp_path, source, tmp_path / "out", "--group-size", 32, "--calibration", path, capsys=capsys)
    assert found.startswith("calibration must ")
    assert message in found
    assert repr(str(path)) in found


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight"])
def test_a_weight_that_is_no_number(tmp_path, source, text, name, capsys):
    tensors = load_file(source / "model.safetensors")
    tensors[name][0, 0] = float("nan")
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    found = refused(tmp_path, source, tmp_path / "out", "--group-size", 32, "--calibration", text, capsys=capsys)
    assert found == f"tensor {name} has numbers that are not finite, which no code can represent"


def test_activations_that_overflow(tmp_path, source, text, capsys):
    tensors = load_file(source / "model.safetensors")
    for name in ("gate", "up"):
        tensors[f"model.layers.0.mlp.{name}_proj.weight"].fill_(3e38)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    found = refused(tmp_path, source, tmp_path / "out", "--group-size", 32, "--calibration", text, capsys=capsys)
    assert found == (
        "model.layers.0.mlp.down_proj reads activations that are not finite: the model's weights are damaged"
    )


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_fails_half_way_leaves_nothing(tmp_path, source, text, error):
    def fail(done, total):
        raise error

    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error):
        quantize(str(source), tmp_path / "out", Recipe.from_options(group_size=32), text, fail)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_filled_meanwhile_stays_as_it_is(tmp_path):
    out = tmp_path / "out"

    def fill():
        with new_folder(out) as part:
            (part / "a").touch()
            assert [path.name for path in out.iterdir()] == [part.name]
            (out / "b").touch()

    with pytest.raises(ValueError, match="there is something in it"):
        fill()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "b"]


def test_the_command_prints_a_table(tmp_path, source, text, capsys):
    argv = ["quantize", str(source), str(tmp_path / "out"), "--group-size", "32", "--calibration", str(text)]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [f"quantizing {source} …", "layer 1 of 2", "layer 2 of 2", ""]
    lines = out.splitlines()
    assert lines[0].split() == ["before", "after"]
    assert [line.split("  ")[0] for line in lines[1:4]] == [
        "linear layers, bytes", "all weights, bytes", "loss on held-out text",
    ]  # fmt: skip
    assert len([line for line in lines if line.startswith("model.layers.") and line.endswith("%")]) == 5
    assert lines[-1].startswith(f"{tmp_path / 'out'}: 4 bits, groups of 32, asymmetric, gptq; ")


def test_the_command_prints_json(tmp_path, source, text, capsys):
    argv = ["quantize", str(source), str(tmp_path / "out"), "--w8a8", "--method", "rtn", "--smoothquant", "0.25"]
    assert main([*argv, "--calibration", str(text), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["loss_rise"] == report["loss_after"] - report["loss_before"]
    chosen = {
        name: report[name] for name in ("method", "bits", "group_size", "symmetric", "activation_bits", "smoothquant")
    }
    assert chosen == {
        "method": "rtn", "bits": 8, "group_size": -1, "symmetric": True, "activation_bits": 8, "smoothquant": 0.25,
    }  # fmt: skip
    assert len(report["errors"]) == 14


def test_the_embedded_models_text_is_conversations_and_texts():
    lines = [json.loads(line) for line in EMBEDDED_TEXT.read_text("utf-8").splitlines()]
    assert {frozenset(line) for line in lines} == {frozenset({"text"}), frozenset({"prompt", "completion"})}
    assert all(line["completion"].endswith("<|im_end|>") for line in lines if "completion" in line)


def test_a_link_to_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "empty")
    with new_folder(tmp_path / "out") as part:
        (part / "config.json").write_text("{}")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["config.json"]


def test_what_a_killed_run_left_is_cleared_away(tmp_path):
    (tmp_path / "out" / PART).mkdir(parents=True)
    (tmp_path / "out" / PART / "0.part").touch()
    with new_folder(tmp_path / "out") as part:
        assert not list(part.iterdir())


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    with new_folder(tmp_path / "out"):
        with pytest.raises(ValueError, match="another run is writing there"), new_folder(tmp_path / "out"):
            raise AssertionError("two have it")
        assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / PART]


def test_a_full_disk_is_one_line(tmp_path, source, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of which half would be left for every later process
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # as a disk with so much room
    try:
        message = refused(tmp_path, source, tmp_path / "out", "--method", "rtn", "--group-size", "32", capsys=capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert message.startswith("out must be a folder that can be written, with room for all of it, got ")


def test_rounding_to_nearest_needs_no_text(tmp_path, source, capsys):
    argv = ["quantize", str(source), str(tmp_path / "out"), "--group-size", "32", "--method", "rtn"]
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert "loss" not in printed
    assert "; no text; " in printed
    assert main([*argv[:2], str(tmp_path / "json"), *argv[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss_before"] is None
