import torch

from folovllm.lora.mapping import LoRAMapping
from lab_judge import expect, invariant


def mapping():
    return LoRAMapping(torch.tensor([0, 0, 2, -1, 2, 1]))


@invariant(1)
def test_the_slots_of_the_wanted_rows_in_their_order():
    expect(mapping().take(torch.tensor([1, 2, 5])).slots.tolist(), [0, 2, 1])


@invariant(1)
def test_another_order_is_kept():
    expect(mapping().take(torch.tensor([5, 0])).slots.tolist(), [1, 0])


@invariant(2)
def test_a_row_without_an_adapter_keeps_its_place():
    expect(mapping().take(torch.tensor([3, 4])).slots.tolist(), [-1, 2])


@invariant(2)
def test_the_old_mapping_stays():
    old = mapping()
    old.take(torch.tensor([5, 0]))
    expect(old.slots.tolist(), [0, 0, 2, -1, 2, 1])


@invariant(2)
def test_each_mapping_is_one_of_its_own():
    old, rows = mapping(), torch.tensor([5, 0])
    first, second = old.take(rows), old.take(torch.tensor([2, 3]))
    expect([first.slots.tolist(), second.slots.tolist(), rows.tolist()], [[1, 0], [2, -1], [5, 0]])


@invariant(2)
def test_its_groups_are_those_of_its_own_rows():
    old = mapping()
    vars(old)["groups"] = "of all rows"  # where the property keeps what it has computed
    expect("groups" in vars(old.take(torch.tensor([5, 0]))), False)


@invariant(3)
def test_the_device_and_the_dtype_are_the_same():
    meta = torch.device("meta")  # has no numbers that could be asked for
    slots = (
        LoRAMapping(torch.zeros(6, dtype=torch.int64, device=meta))
        .take(torch.zeros(2, dtype=torch.int64, device=meta))
        .slots
    )
    expect([str(slots.device), str(slots.dtype)], ["meta", "torch.int64"])
