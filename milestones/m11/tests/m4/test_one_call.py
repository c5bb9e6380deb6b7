"""All layers in one call: Hugging Face's tokens, and the bits of the same layers called one by one."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from folovllm.attention.backends.cpu import CPUBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.layers.compiled_ops import CompiledOps
from folovllm.models import one_call
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.one_call import OneCallOps
from folovllm.models.weights import build_model
from folovllm.utils import cpu_kernels
from tests.helpers import hf_greedy, make_hf_folder, thinned
from tests.m4.cpu_target import REASON, target  # noqa: F401
from tests.m4.test_cpu_decode import Decoding, prompts_of

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=f"the CPU kernels cannot run: {REASON}")
]  # fmt: skip
BLOCK_SIZE, NUM_BLOCKS = 16, 40
KINDS = {"int64_t": cpu_kernels.INT, "float": cpu_kernels.FLOAT}
PROMPT_LENGTHS = (1, 17, 40)


def build(folder: Path, dtype: torch.dtype = torch.float32, kind: type[CompiledOps] = OneCallOps) -> DecoderForCausalLM:
    config = AutoConfig.from_pretrained(folder)
    return build_model(config, 256, dtype, torch.device("cpu"), folder, ops=kind(dtype))


def check_greedy(folder: Path, num_tokens: int) -> OneCallOps:
    """Prompts of several lengths in one step, then decodes: Hugging Face's tokens. Returns what ran the layers."""
    model = build(folder)
    oracle = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = prompts_of(PROMPT_LENGTHS)
    decoding = Decoding(model, prompts, kind=CPUBackend)
    assert decoding.greedy(num_tokens) == [hf_greedy(oracle, prompt, num_tokens) for prompt in prompts]
    assert isinstance(model.model.ops, OneCallOps)
    return model.model.ops


class Steps:
    """Random steps of three sequences, the same for each model that they are given to: prompts in chunks, decodes, and
    sequences that sit a step out."""

    def __init__(self, model: DecoderForCausalLM, cache_dtype: torch.dtype) -> None:
        self.model, self.random = model, torch.Generator().manual_seed(5)
        first = model.attention_layers[0]
        backend = CPUBackend(first.num_heads, first.num_kv_heads, first.head_size, first.scale)
        self.shape, self.dtype, self.backend = backend.kv_cache_shape(NUM_BLOCKS, BLOCK_SIZE), cache_dtype, backend
        self.tables = torch.randperm(NUM_BLOCKS - 1, generator=self.random)[:36].view(3, 12).int() + 1
        self.lens = [0, 0, 0]
        self.clear()

    def clear(self) -> None:
        for layer in self.model.attention_layers:
            layer.bind(self.backend, torch.full(self.shape, torch.nan, dtype=self.dtype))

    @property
    def caches(self) -> list[torch.Tensor]:
        return [layer.kv_cache.nan_to_num(7.0) for layer in self.model.attention_layers if layer.kv_cache is not None]

    @torch.inference_mode()
    def step(self, **told: Any) -> tuple[torch.Tensor, list[int]]:
        """(hidden states, the last row of each sequence)."""
        kinds = torch.randint(0, 3, (3,), generator=self.random).tolist()
        counts = [int(torch.randint(2, 20, (), generator=self.random)) if kind == 2 else kind for kind in kinds]
        if not any(counts):
            counts[0] = 1
        spans = [torch.arange(length, length + count) for length, count in zip(self.lens, counts, strict=True)]
        self.lens = [length + count for length, count in zip(self.lens, counts, strict=True)]
        slots = [
            table[span // BLOCK_SIZE] * BLOCK_SIZE + span % BLOCK_SIZE
            for table, span in zip(self.tables.long(), spans, strict=True)
        ]
        starts = torch.tensor([0, *counts]).cumsum(0)
        metadata = AttentionMetadata(
            query_start_loc=starts.int(), seq_lens=torch.tensor(self.lens, dtype=torch.int32),
            slot_mapping=torch.cat(slots), block_tables=self.tables, max_query_len=max(counts),
            max_seq_len=max(self.lens), **told,
        )  # fmt: skip
        ids = torch.randint(0, 256, (sum(counts),), generator=self.random)
        last = [end - 1 for end, count in zip(starts[1:].tolist(), counts, strict=True) if count]
        return self.model(ids, torch.cat(spans), metadata), last


DTYPES = [("float32", "no", torch.float32), ("bfloat16", "no", torch.bfloat16), ("bfloat16", "yes", torch.bfloat16)]


@pytest.mark.parametrize(
    ("computed", "rows_of_call"),
    thinned({str(each): each for each in [*DTYPES, ("float32", "no", torch.bfloat16)]}, {"1": 1, "8192": 8192}),
)
@pytest.mark.usefixtures("target")
def test_each_bit_is_that_of_the_layers_one_by_one(computed, rows_of_call, tmp_path, monkeypatch):
    """However many layers are a call."""
    dtype, has_units, cache = computed
    monkeypatch.setenv("FOLOVLLM_CPU_BF16", has_units)
    monkeypatch.setattr(one_call, "ROWS_OF_CALL", rows_of_call)
    folder = make_hf_folder(tmp_path, "qwen3", dtype=getattr(torch, dtype), num_hidden_layers=3)
    one_by_one, in_one = (
        Steps(build(folder, getattr(torch, dtype), kind), cache) for kind in (CompiledOps, OneCallOps)
    )
    for _ in range(8):
        want, got = one_by_one.step()[0], in_one.step()[0]
        assert torch.equal(got, want)
    assert in_one.model.model.ops.prepared is not None
    for want, got in zip(one_by_one.caches, in_one.caches, strict=True):
        assert torch.equal(got, want)


def test_where_only_last_rows_are_read_they_have_the_same_bits_and_the_others_are_zero(tmp_path):
    folder = make_hf_folder(tmp_path, "qwen3", num_hidden_layers=3)
    all_rows, last_rows = (Steps(build(folder, kind=kind), torch.float32) for kind in (CompiledOps, OneCallOps))
    left_out = 0
    for _ in range(12):
        (want, last), (got, _) = all_rows.step(), last_rows.step(last_rows_only=True)
        assert torch.equal(got[last], want[last])
        others = [row for row in range(len(got)) if row not in last]
        left_out += len(others)
        assert not got[others].any()
    assert left_out > 20
    for want, got in zip(all_rows.caches, last_rows.caches, strict=True):
        assert torch.equal(got, want)


def test_new_caches_are_seen(tmp_path):
    steps = Steps(build(make_hf_folder(tmp_path)), torch.float32)
    first = steps.step()[0]
    before = steps.model.attention_layers[1].kv_cache
    kept = before.clone()
    steps.clear()
    steps.lens, steps.random = [0, 0, 0], torch.Generator().manual_seed(5)
    torch.randperm(NUM_BLOCKS - 1, generator=steps.random)
    assert torch.equal(steps.step()[0], first)
    assert torch.equal(before.nan_to_num(7.0), kept.nan_to_num(7.0))
    assert torch.equal(steps.model.attention_layers[1].kv_cache.nan_to_num(7.0), kept.nan_to_num(7.0))


def test_a_cache_that_the_kernels_cannot_read_is_read_layer_by_layer(tmp_path):
    folder = make_hf_folder(tmp_path, "llama", head_dim=24)  # heads of a multiple of 16 are read
    assert check_greedy(folder, 8).prepared is None


def test_the_tables_that_are_handed_over_have_the_fields_of_the_header():
    """In the same order, and each as wide: C++ reads them by their places."""
    header = (cpu_kernels.SOURCES / "kernels.h").read_text()
    structs = {}
    for struct, body in re.findall(r"struct (\w+) \{\n(.*?)\n\};", header, re.DOTALL):
        fields = structs[struct] = []
        for kind, names in re.findall(r"^ +(?:const )?(\w+) ([^;]+);", body, re.MULTILINE):
            for name in names.split(","):
                whole = cpu_kernels.POINTER if "*" in name else KINDS.get(kind)
                parts = [(name.strip(" *"), whole)] if whole else [(f"{name.strip()}_{x}", y) for x, y in structs[kind]]
                fields.extend(parts)
    assert structs["Product"] == [("weight", cpu_kernels.POINTER), ("bias", cpu_kernels.POINTER)]
    tables = [each for each in vars(one_call).values() if isinstance(each, type) and issubclass(each, ctypes.Structure)]
    assert len(tables) > 3  # and Structure itself
    for table in tables:
        if table is not ctypes.Structure:
            assert [tuple(field) for field in table._fields_] == structs[table.__name__]
    functions = re.findall(r"void (\w+)_##NAME\(([^)]*)\);", header.replace("\\\n", " "))
    assert {
        name: [cpu_kernels.POINTER if "*" in each else KINDS[each.split()[0]] for each in takes.split(",")]
        for name, takes in functions
    } == cpu_kernels.ARGTYPES
