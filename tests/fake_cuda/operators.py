"""What happens when an operator gets CudaTensors: the same operator on the tensors inside, and the books are kept."""

from __future__ import annotations

from typing import Any

import torch

from tests.fake_cuda.copies import check_same_device, convert, copy_into
from tests.fake_cuda.machine import Device
from tests.fake_cuda.tensor import CudaTensor, mapped, tensors_in, unwrap

# These launch nothing.
NO_KERNEL = {
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "alias", "lift_fresh",
    "_unsafe_view", "_reshape_alias", "is_same_size", "sym_size", "sym_stride", "_conj", "resolve_conj", "resolve_neg",
}  # fmt: skip
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
# The size of what they return is known on the device only.
WAITS = {
    "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal", "is_nonzero",
    "_local_scalar_dense", "repeat_interleave",
}  # fmt: skip
TAKES_HOST_INDICES = {"index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"}
RANDOM = {
    "exponential_", "uniform_", "normal_", "random_", "randint", "rand", "randn", "randperm", "bernoulli_",
    "multinomial",
}  # fmt: skip


def run(func: Any, args: Any, kwargs: dict[str, Any], made_on: Device | None = None) -> Any:
    """made_on: the device of a factory's result, where no tensor says it."""
    name = func._schema.name.partition("::")[2]
    tensors = list(tensors_in((args, kwargs)))
    ours = [tensor for tensor in tensors if isinstance(tensor, CudaTensor)]
    hosts = [tensor for tensor in tensors if not isinstance(tensor, CudaTensor) and tensor.dim() > 0]
    device = ours[0].on if ours else made_on
    assert device is not None
    machine = device.machine
    if name == "_to_copy":
        target = torch.device(kwargs.get("device") or args[0].device)
        dtype = kwargs.get("dtype") or args[0].dtype
        return convert(args[0], target, dtype, bool(kwargs.get("non_blocking")), machine)
    if name == "copy_":
        return copy_into(args[0], args[1], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
    if name in TAKES_HOST_INDICES and hosts:
        machine.uploads += [tensor.nbytes for tensor in hosts]
        device.wait(f"{name} with indices in host memory")
        hosts = []
    check_same_device(name, ours, hosts)
    is_masked = name in TAKES_HOST_INDICES and any(tensor.dtype == torch.bool for tensor in ours[1:])
    if name in WAITS or is_masked:
        device.wait(name)
        if name == "_local_scalar_dense" and not machine.numbers:
            return torch.zeros((), dtype=ours[0].dtype).item()
    if name in RANDOM:
        device.refuse_in_capture(f"random draw by {name}")
    inner_args, inner_kwargs = mapped(unwrap, args), mapped(unwrap, kwargs)
    if inner_kwargs.get("device") is not None and torch.device(inner_kwargs["device"]).type == "cuda":
        inner_kwargs["device"] = machine.data_device
    if not machine.numbers:
        inner_args = mapped(lambda x: x.to("meta") if isinstance(x, torch.Tensor) and x.dim() else x, inner_args)
    out = func(*inner_args, **inner_kwargs)
    return _wrap(func, name, (inner_args, inner_kwargs), ours, out, device)


def _wrap(func: Any, name: str, inputs: tuple[Any, Any], ours: list[CudaTensor], out: Any, device: Device) -> Any:
    """The outputs as CudaTensors: the very input where it was written in place, a view where memory is shared."""
    by_inner = {id(tensor.inner): tensor for tensor in ours}
    by_storage = {tensor.inner.untyped_storage()._cdata: tensor for tensor in ours}
    fresh: list[torch.Tensor] = []

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, CudaTensor):
            return value
        if id(value) in by_inner:
            return by_inner[id(value)]
        base = by_storage.get(value.untyped_storage()._cdata)
        if base is not None:
            return CudaTensor(value, base.allocation)
        fresh.append(value)
        return CudaTensor(value, None, device)

    wrapped = mapped(one, out)
    if name in EMPTY:
        device.spoil(fresh)
    writes = func._schema.is_mutable
    if name not in NO_KERNEL and (fresh or writes or not ours):
        args, kwargs = inputs

        def again() -> None:
            made = tensors_in(func(*args, **kwargs))
            for kept, new in zip([] if writes else fresh, made, strict=False):
                kept.copy_(new)

        device.launched(name, again, [tensor.allocation for tensor in ours])
    return wrapped


def made(func: Any, args: Any, kwargs: dict[str, Any], device: Device) -> CudaTensor:
    """A factory's tensor: torch.zeros(..., device="cuda") and its like."""
    name = func.__name__
    if name in RANDOM:
        device.refuse_in_capture(f"random draw by {name}")
    again = {**kwargs, "device": device.machine.data_device}
    tensor = CudaTensor(func(*args, **again), None, device)
    if name in EMPTY:
        device.spoil([tensor.inner])
    if name not in NO_KERNEL:
        inner = tensor.inner
        device.launched(name, lambda: inner.copy_(func(*args, **again)), [])
    return tensor
