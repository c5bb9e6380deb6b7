"""The parts by themselves: the pair of a stacked layer, the rows of a step by adapter, slots, what a hash begins with,
and who is let in.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm import Request, SamplingParams
from folovllm.config import SchedulerConfig
from folovllm.core.block_hash import HashChain
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.layers.compiled_lora import CompiledLoRAWeights
from folovllm.layers.lora import LoRAWeights, stack_pairs
from folovllm.lora.mapping import LoRAMapping, group_rows
from folovllm.lora.request import LoRAModel, LoRARequest
from folovllm.request import SequenceData
from folovllm.utils.cpu_kernels import unavailable_reason
from folovllm.worker.lora import LoRASlots

CPU = torch.device("cpu")
A, B, C, D = (LoRAModel(name, name.encode(), {}) for name in "abcd")


def request(name: str, lora: LoRAModel | None, prompt: list[int] | None = None) -> Request:
    return Request(name, None, prompt or [1, 2, 3], SamplingParams(max_tokens=2), lora=lora)


def test_a_stacked_layers_pair_is_its_parts_pairs_side_by_side() -> None:
    q = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])
    v = torch.tensor([[5.0, 6.0]]), torch.tensor([[7.0]])
    a, b = stack_pairs({"q": q, "v": v}, {"q": 2, "k": 1, "v": 1}, 2)
    assert a.tolist() == [[1, 2], [5, 6]]
    assert b.tolist() == [[3, 0], [4, 0], [0, 0], [0, 7]]  # k's row is zero: it has no pair


def test_a_layer_without_a_pair_has_one_of_rank_0() -> None:
    a, b = stack_pairs({}, {"": 3}, 2)
    assert (a.shape, b.shape) == ((0, 2), (3, 0))


def test_rows_are_grouped_by_slot_and_those_without_an_adapter_left_out() -> None:
    slots, ends, rows = group_rows(torch.tensor([0, 0, 2, -1, 2, 1]))
    assert (slots.tolist(), ends.tolist(), rows.tolist()) == ([0, 1, 2], [2, 3, 5], [0, 1, 5, 2, 4])


def test_taken_rows_have_new_numbers() -> None:
    mapping = LoRAMapping(torch.tensor([0, 0, 2, -1, 2, 1])).take(torch.tensor([1, 3, 4]))
    assert [(slot, rows.tolist()) for slot, rows in mapping.spans] == [(0, [0]), (2, [2])]


@pytest.mark.parametrize("kind", [LoRAWeights, CompiledLoRAWeights])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_get_what_their_adapters_add(kind: type[LoRAWeights], dtype: torch.dtype) -> None:
    if kind is CompiledLoRAWeights and (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    weights = kind(3, 8, 24, 40, dtype, CPU)
    pairs = [(torch.randn(rank, 24) / 5, torch.randn(40, rank)) for rank in (8, 0, 3)]
    for slot in (2, 1, 0, 2):  # twice into one: what was there is gone
        weights.put(slot, *pairs[slot])
    x, slots = torch.randn(7, 24).to(dtype), [2, 0, -1, 1, 0, 2, 2]
    out = torch.randn(7, 40).to(dtype)
    want = out.double()
    for row, slot in enumerate(slots):
        if slot >= 0:
            a, b = (each.to(dtype).double() for each in pairs[slot])
            want[row] += b @ (a @ x[row].double())
    weights.add(x, LoRAMapping(torch.tensor(slots)), out)
    assert (out.double() - want).abs().max() < (1e-5 if dtype == torch.float32 else 0.05)


def test_the_adapter_used_longest_ago_leaves_its_slot() -> None:
    put: list[tuple[int, str]] = []
    slots = LoRASlots(lambda slot, lora: put.append((slot, lora.name)), 2)

    def step(*loras: LoRAModel | None) -> list[int] | None:
        return slots.of([request("r", lora).get_seqs()[0] for lora in loras])

    assert step(None, None) is None
    first, second = step(A, B) or []
    assert step(B, None, B) == [second, -1, second]
    assert step(C) == [first]
    assert step(B) == [second]
    assert [name for _, name in put] == ["a", "b", "c"]
    assert slots.num_loads == 3


def test_what_could_not_be_put_leaves_a_slot_that_is_free() -> None:
    def put(slot: int, lora: LoRAModel) -> None:
        if lora is B:
            raise MemoryError

    slots = LoRASlots(put, 1)
    seq_of = {name: request("r", lora).get_seqs()[0] for name, lora in (("a", A), ("b", B))}
    slots.of([seq_of["a"]])
    with pytest.raises(MemoryError):
        slots.of([seq_of["b"]])
    assert slots.of([seq_of["a"]]) == [0]
    assert slots.num_loads == 2


def root(salt: str | None, adapter: bytes) -> bytes:
    return HashChain(SequenceData([1, 2, 3, 4]), 4, salt, adapter=adapter).block_hash(0)


def test_a_hash_begins_with_the_adapters_content_and_the_salt() -> None:
    roots = [root(None, b""), root("s", b""), root(None, b"a" * 32), root("s", b"a" * 32), root(None, b"b" * 32)]
    assert len(set(roots)) == len(roots)
    assert HashChain(SequenceData([1, 2, 3, 4]), 4, None, adapter=b"a" * 32).fork(
        SequenceData([1, 2, 3, 4]), 0
    ).block_hash(0) == root(None, b"a" * 32)


def desk(max_loras: int, num_blocks: int = 40) -> Scheduler:
    limits = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=32)
    return Scheduler(limits, KVCacheManager(num_blocks, 4), frozenset(), max_loras=max_loras)


def let_in(scheduler: Scheduler) -> list[str]:
    output = scheduler.schedule()
    scheduler.update_from_output(output, [9] * len(output.rows))
    return [seq.request_id for seq in output.scheduled_seqs]


def test_no_more_than_max_loras_run_and_who_comes_later_waits_behind() -> None:
    scheduler = desk(2)
    for name, lora in (("1", A), ("2", B), ("3", A), ("4", None), ("5", C), ("6", B), ("7", None)):
        scheduler.add_request(request(name, lora))
    assert let_in(scheduler) == ["1", "2", "3", "4"]  # 5 would be the third, and nobody overtakes it
    for running in list(scheduler.running):
        if running.lora is A:
            scheduler.abort(running)
    assert let_in(scheduler) == ["2", "4", "5", "6", "7"]


def test_two_names_of_one_content_count_once() -> None:
    scheduler = desk(1)
    scheduler.add_request(request("1", A))
    scheduler.add_request(request("2", LoRAModel("another name", A.digest, {})))
    assert let_in(scheduler) == ["1", "2"]


def test_a_request_for_an_adapter_is_plain_data(tmp_path: Path) -> None:
    assert LoRARequest("a", 1, tmp_path).lora_path == str(tmp_path)
    for wrong, said in ((("a", 0, "x"), "lora_int_id must be"), ((3, 1, "x"), "lora_name must be")):
        with pytest.raises(ValueError, match=said):
            LoRARequest(*wrong)  # type: ignore[arg-type]
