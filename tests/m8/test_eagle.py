"""A head that reads the target: its guesses are those of plain torch's head, since one that is wrong changes no token;
and the tokens are Hugging Face's, whatever happens to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from folovllm import LLM, SamplingParams
from folovllm.engine.builder.proposer import HEAD_FOLDER
from folovllm.errors import ModelLoadError
from folovllm.layers.compiled_ops import CompiledLinear, compiled_unavailable_reason
from folovllm.layers.linear import Linear
from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.models.greedy_run import in_bfloat16
from tests.helpers import hf_greedy
from tests.m8.eagle_support import PREFIX, HeadOracle, mimo_folder, mimo_target, watch_guesses
from tests.m8.support import guess_always

needs_kernels = pytest.mark.skipif(
    compiled_unavailable_reason(torch.float32) is not None, reason="the CPU kernels cannot run"
)
STORY = [299, 402, 15, 277, 1000, 12, 9, 310, 44, 71, 5]
PROMPTS = [STORY * 3, [7, 7, 1], list(range(20, 60)), [*STORY * 3, 9], [5]]
NEW = 24
PARAMS = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
TIGHT = {"block_size": 4, "num_kv_blocks": 40, "max_model_len": 120}


def drafting(method: str = "eagle", **options: Any) -> LLM:
    asked = {"method": method, "num_speculative_tokens": options.pop("guesses", 4)}
    asked |= {"model": str(options.pop("head"))} if "head" in options else {}
    llm = LLM(dtype="float32", device="cpu", speculative_config=asked, **options)
    guess_always(llm.engine)
    return llm


def tokens(llm: LLM, params: SamplingParams = PARAMS, prompts: list[list[int]] = PROMPTS) -> list[list[list[int]]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [[list(each.token_ids) for each in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def target() -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def expected(target: torch.nn.Module) -> list[list[list[int]]]:
    return [[hf_greedy(target, prompt, NEW)] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": False},
        {"enforce_eager": True, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 16, "enable_prefix_caching": False, "guesses": 2},
        {**TIGHT, "enable_prefix_caching": False, "guesses": 11},
    ],
    ids=["in one call", "operator by operator", "chunks", "recompute"],
)
def test_guesses_are_those_of_plain_torchs_head(
    options: dict[str, Any], target: torch.nn.Module, expected: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, oracle = drafting(**options), HeadOracle(target, HEAD_FOLDER)
    said = watch_guesses(llm.engine, monkeypatch)
    assert tokens(llm) == expected
    assert len(said) > 20
    for token_ids, guess in said[::2]:
        assert guess == oracle.says(token_ids, len(guess))
    assert (llm.engine.stats().preemptions > 0) == ("num_kv_blocks" in options)


def test_so_they_are_when_nobody_has_asked_for_a_while(
    target: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than hidden states are kept, or shorter: the head has computed keys meanwhile, or does so now."""
    llm, oracle = drafting(), HeadOracle(target, HEAD_FOLDER)
    said, asked = watch_guesses(llm.engine, monkeypatch), [0, 4, 0, 0, 2, *[0] * 10, 4, 4, *[0] * 9, 3, 3]
    choices = iter(asked * 3)
    monkeypatch.setattr(llm.engine.scheduler.drafts.length, "choose", lambda num_seqs: next(choices, 0))
    tokens(llm, SamplingParams(temperature=0, max_tokens=80, ignore_eos=True), PROMPTS[:2])
    assert len(said) > 6
    for token_ids, guess in said:
        assert guess == oracle.says(token_ids, len(guess))


@pytest.mark.parametrize(
    "options",
    [TIGHT, {**TIGHT, "preemption_mode": "swap", "swap_space": 0.01}, {"max_num_batched_tokens": 16, "block_size": 4}],
    ids=["recompute", "swap", "chunks"],
)
def test_the_head_changes_no_token(options: dict[str, Any], expected: list[list[list[int]]]) -> None:
    """Asked again, the prompts are in the prefix cache, and the head's keys beside them."""
    llm = drafting(**options)
    assert tokens(llm) == expected
    assert tokens(llm) == expected
    assert (llm.engine.stats().preemptions > 0) == ("num_kv_blocks" in options)
    seeded = SamplingParams(temperature=0.9, seed=7, n=2, max_tokens=16)
    assert tokens(llm, seeded) == tokens(LLM(dtype="float32", device="cpu"), seeded)
    beams = SamplingParams(temperature=0, use_beam_search=True, best_of=2, n=2, max_tokens=8)
    assert tokens(llm, beams, PROMPTS[:2]) == tokens(LLM(dtype="float32", device="cpu"), beams, PROMPTS[:2])


def test_most_guesses_are_right_where_the_head_has_learnt() -> None:
    question = [{"role": "user", "content": "What is paged attention?"}]
    llm, params = drafting(block_size=4), SamplingParams(temperature=0, max_tokens=100)
    (answer,) = llm.chat(question, params, use_tqdm=False)
    steps = llm.engine.stats().steps
    assert steps < 0.5 * len(answer.outputs[0].token_ids)
    # Once more, its prompt in the prefix cache: the head's keys are there, too.
    (again,) = llm.chat(question, params, use_tqdm=False)
    assert again.num_cached_tokens
    assert llm.engine.stats().steps - steps <= steps


def test_a_head_in_the_models_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MiMo's layout. The random model says what it likes, and so does its head: all guesses are checked."""
    folder = mimo_folder(tmp_path)
    target, oracle = mimo_target(folder), HeadOracle(mimo_target(folder), folder)
    prompts = [[each % 256 for each in prompt] for prompt in PROMPTS]
    llm = drafting("mtp", model=str(folder), skip_tokenizer_init=True, enable_prefix_caching=False)
    said = watch_guesses(llm.engine, monkeypatch)
    assert tokens(llm, prompts=prompts) == [[hf_greedy(target, prompt, NEW)] for prompt in prompts]
    for token_ids, guess in said[::3]:
        assert guess == oracle.says(token_ids, len(guess))
    plain = LLM(str(folder), dtype="float32", device="cpu", skip_tokenizer_init=True)  # it can do without its head
    assert tokens(plain, prompts=prompts[:1]) == [[hf_greedy(target, prompts[0], NEW)]]


@needs_kernels
def test_the_lm_head_is_read_in_half_the_bytes_where_that_changes_no_bit() -> None:
    """A file's numbers are mostly bfloat16, also where a model computes in float32."""
    llm = drafting()
    asked = llm.engine.runner.speculation.proposer.lm_head
    assert asked.weight.dtype == torch.bfloat16
    assert llm.engine.runner.model.lm_head.weight.dtype == torch.float32
    for rows in (1, 5, 40):
        x = torch.randn(rows, asked.in_features)
        assert torch.equal(asked(x), llm.engine.runner.model.lm_head(x))
    wide = Linear(32, 64, method=CompiledLinear())
    wide.weight.data = torch.full((64, 32), 1 + 2**-12)  # no bfloat16 number
    wide.method.process_weights_after_loading(wide)
    assert in_bfloat16(wide) is wide


def head_with(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], **fields: Any
) -> Path:
    folder.mkdir()
    config = json.loads((HEAD_FOLDER / "config.json").read_text("utf-8")) | fields
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    save_file(change(load_file(HEAD_FOLDER / "model.safetensors")), folder / "model.safetensors")
    return folder


THEIRS = {
    "EAGLE-1's": ["layers.0.mlp.up_proj.weight", "fc.weight"],
    "EAGLE-3's": ["fc.weight", "midlayer.hidden_norm.weight", "d2t"],
    "DeepSeek's": ["model.layers.61.eh_proj.weight"],
    "Qwen3-Next's": ["mtp.fc.weight"],
    f"must have a head, whose tensors are named {PREFIX}": ["model.norm.weight"],
}


@pytest.mark.parametrize("said", THEIRS)
def test_heads_of_others_are_refused_by_name(tmp_path: Path, said: str) -> None:
    folder = head_with(tmp_path / "head", lambda _: {name: torch.ones(8) for name in THEIRS[said]})
    with pytest.raises(ModelLoadError, match=f"^speculative_config's 'eagle': .*{said}"):
        drafting(head=folder)


def test_a_head_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    wrong = {
        r"hidden_size of .* must be the model's, 128, got 64": head_with(tmp_path / "a", dict, hidden_size=64),
        r"tensor .*mlp.down_proj.weight is BF16 \(128, 384\), the configuration asks for .* \(128, 200\)": head_with(
            tmp_path / "b", dict, intermediate_size=200
        ),
        r"the head lacks 1 tensor\(s\): model.mtp_layers.0.input_proj.weight": head_with(
            tmp_path / "c", lambda tensors: {k: t for k, t in tensors.items() if "input_proj" not in k}
        ),
        r"tensor model.mtp_layers.0.gate.weight is F32 \(128,\), the configuration asks for no such tensor": head_with(
            tmp_path / "d", lambda tensors: tensors | {f"{PREFIX}gate.weight": torch.ones(128)}
        ),
    }
    for text, folder in wrong.items():
        with pytest.raises(ModelLoadError, match=text):
            drafting(head=folder)
