import torch

from folovllm.lora.mapping import LoRAMapping
from lab_judge import expect, invariant

CPU = torch.device("cpu")


def mapping():
    return LoRAMapping(torch.tensor([0, 0, 2, -1, 2, 1]), CPU)


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
def test_the_device_is_the_same():
    taken = LoRAMapping(torch.tensor([0, 1]), torch.device("meta")).take(torch.tensor([1]))
    expect([str(taken.device), str(taken.slots.device), str(taken.slots.dtype)], ["meta", "cpu", "torch.int64"])
