"""CudaTensor: a tensor that says it lies on a CUDA device, around one that really holds the numbers.

To C++ it is a CPU tensor without storage, since a build of torch without CUDA knows no other; to Python it is a CUDA
tensor. What C++ would decide by the device before it dispatches (indexing, item, to) is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.fake_cuda.machine import Allocation, Device

aten = torch.ops.aten


class CudaTensor(torch.Tensor):
    """`inner` has the numbers and the strides, `allocation` the memory, which views share."""

    inner: torch.Tensor
    allocation: Allocation

    @staticmethod
    def __new__(cls, inner: torch.Tensor, allocation: Allocation | None, on: Device | None = None) -> CudaTensor:
        with torch.inference_mode(False):  # in such a block, views of older tensors would lack a version
            made: CudaTensor = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                device=torch.device("cpu"), requires_grad=False,
            )  # fmt: skip
        made.inner = inner
        if allocation is None:
            assert on is not None
            allocation = Allocation(on, inner.untyped_storage().nbytes())
        made.allocation = allocation
        return made

    @property
    def on(self) -> Device:
        return self.allocation.device

    device = property(lambda self: self.on.torch_device)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        return self.on.index

    def to(self, *args: Any, **kwargs: Any) -> Any:
        from tests.fake_cuda.copies import convert

        copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        target = self.device if device is None else device
        if target.type == "cuda" and target.index is None:
            target = self.on.machine.device(target).torch_device
        if not copy and target == self.device and dtype in (None, self.dtype):
            return self
        return convert(self, target, dtype or self.dtype, non_blocking, self.on.machine)

    def cpu(self, *_: Any, **__: Any) -> Any:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> Any:
        return self

    def item(self) -> Any:
        self.on.wait("item")
        return self.inner.item() if self.on.machine.numbers else torch.zeros((), dtype=self.dtype).item()

    def tolist(self) -> Any:
        self.on.wait("tolist")
        return (self.inner if self.on.machine.numbers else torch.zeros(self.shape, dtype=self.dtype)).tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu()")

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:
        return f"CudaTensor({self.inner!r}, device='{self.device}')"

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def data_ptr(self) -> int:
        """Without numbers: such that alignment is as it would be."""
        if self.on.machine.numbers:
            return self.inner.data_ptr()
        return 1 << 40 | self.inner.storage_offset() * self.inner.element_size()

    def __getitem__(self, index: Any) -> Any:
        inner_index, picks = self._index(index)
        if not picks:
            return CudaTensor(self.inner[inner_index], self.allocation)
        source = self.inner
        out = CudaTensor(source[inner_index], None, self.on)
        to = out.inner  # the graph keeps the numbers, not the allocation
        self._launched("index", lambda: to.copy_(source[inner_index]), picks)
        return out

    def __setitem__(self, index: Any, value: Any) -> None:
        from tests.fake_cuda.copies import check_same_device, upload

        inner_index, picks = self._index(index)
        if isinstance(value, CudaTensor):
            check_same_device("index_put_", [self, value], [])
        elif isinstance(value, torch.Tensor) and value.dim() > 0:
            upload(value, non_blocking=False, to=self.on)
        to, of = self.inner, unwrap(value)
        if isinstance(of, torch.Tensor) and not self.on.machine.numbers:
            of = of.to("meta")

        def write() -> None:
            to[inner_index] = of

        write()
        name = "index_put_" if picks else "copy_" if isinstance(of, torch.Tensor) else "fill_"
        self._launched(name, write, [value, *picks])

    def _index(self, index: Any) -> tuple[Any, list[Any]]:
        """The index for `inner`, and those of its parts that pick rows. A list or a host tensor is uploaded first, and
        of a mask the host asks how many rows it picks."""
        parts = index if isinstance(index, tuple) else (index,)
        picks = [part for part in parts if isinstance(part, torch.Tensor | list)]
        for pick in picks:
            if not isinstance(pick, CudaTensor):
                self.on.machine.launches["memcpy h2d"] += 1
                self.on.machine.uploads.append(8 * len(pick))
                self.on.wait("indices from host memory")
            elif pick.dtype == torch.bool:
                self.on.wait("counting what a mask picks")
        inner = tuple(unwrap(part) for part in parts) if isinstance(index, tuple) else unwrap(index)
        if not self.on.machine.numbers:
            inner = mapped(lambda part: part.to("meta") if isinstance(part, torch.Tensor) else part, inner)
        return inner, picks

    def _launched(self, name: str, compute: Any, others: list[Any]) -> None:
        ours = [self, *(other for other in others if isinstance(other, CudaTensor))]
        self.on.launched(name, compute, [tensor.allocation for tensor in ours])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from tests.fake_cuda.operators import run

        return run(func, args, kwargs or {})


def unwrap(value: Any) -> Any:
    return value.inner if isinstance(value, CudaTensor) else value


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """`change` of each value in tuples, lists and dictionaries; ten times as fast as torch's tree_map."""
    if isinstance(value, tuple):
        return tuple([mapped(change, part) for part in value])
    if isinstance(value, list):
        return [mapped(change, part) for part in value]
    if isinstance(value, dict):
        return {key: mapped(change, part) for key, part in value.items()}
    return change(value)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
