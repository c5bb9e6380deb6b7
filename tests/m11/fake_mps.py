"""A stand-in for a Mac's GPU: the engine's path for it runs on a CPU, and what would go wrong says so.

An MpsTensor says that it lies on "mps"; its numbers lie in a CPU tensor. Every operator that reaches it must be one
that torch has for MPS: torchgen brings torch's list of operators, with the devices that each is written for. Refused,
too, are float64, host tensors beside those of the device, and copies from the host that do not wait: their source may
be gone.

What it cannot know: whether Apple's GPU computes what torch's list promises, and how fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
import yaml
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fake_cuda.tensor import mapped, tensors_in

DEVICE = torch.device("mps", 0)
FACTORIES = {"empty", "zeros", "ones", "full", "arange", "tensor"}
TAKES_HOST_TENSORS = {"copy_", "_to_copy", "index", "index_put_", "_index_put_impl_"}


class MpsTensor(torch.Tensor):
    """To C++ a CPU tensor without storage, as in tests/fake_cuda; to Python a tensor of MPS."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> MpsTensor:
        if inner.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        with torch.inference_mode(False):
            made: MpsTensor = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
            )
        made.inner = inner
        return made

    device = property(lambda self: DEVICE)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        copy = kwargs.pop("copy", False)
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type == "cpu":
            return self.inner.to(dtype or self.dtype, copy=True)
        return MpsTensor(self.inner.to(dtype, copy=True)) if copy or dtype not in (None, self.dtype) else self

    def item(self) -> Any:
        return self.inner.item()

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert mps:0 device type tensor to numpy. Use Tensor.cpu()")

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:
        return f"MpsTensor({self.inner!r})"

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def __getitem__(self, index: Any) -> Any:
        return MpsTensor(self.inner[mapped(_unwrap, index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.inner[mapped(_unwrap, index)] = _unwrap(value)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@cache
def _operators() -> dict[str, dict[str, Any]]:
    """By name and overload, what torch's list says."""
    path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    entries = yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {entry["func"].partition("(")[0]: entry for entry in entries}


@cache
def runs_on_mps(name: str) -> bool:
    """Whether torch has the operator of that name and overload for MPS, or makes it of others."""
    entry = _operators().get(name)
    if entry is None:
        return False
    if delegate := entry.get("structured_delegate"):
        return runs_on_mps(delegate)
    devices = {device.strip() for key in entry.get("dispatch", {}) for device in key.split(",")}
    made_of_others = {
        "CompositeExplicitAutograd",
        "CompositeImplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
    }
    return "dispatch" not in entry or bool(devices & {"MPS", *made_of_others})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, overload = func._schema.name.partition("::")[2], func._schema.overload_name
    if not runs_on_mps(f"{name}.{overload}" if overload else name):
        raise NotImplementedError(f"torch has no {func} for MPS")
    tensors = list(tensors_in((args, kwargs)))
    hosts = [each for each in tensors if not isinstance(each, MpsTensor) and each.dim() > 0]
    if hosts and name not in TAKES_HOST_TENSORS:
        raise RuntimeError(f"{func}: tensors on mps:0 and cpu")
    if name == "copy_" and hosts and (kwargs.get("non_blocking") or True in args[2:]):
        raise RuntimeError("a copy between host and MPS that does not wait")
    inner_kwargs = mapped(_unwrap, kwargs)
    if "device" in inner_kwargs:
        inner_kwargs["device"] = "cpu"
    out = func(*mapped(_unwrap, args), **inner_kwargs)
    if name == "copy_" and not isinstance(args[0], MpsTensor):
        return args[0]
    written = {id(each.inner): each for each in tensors if isinstance(each, MpsTensor)}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return written[id(value)] if id(value) in written else MpsTensor(value)

    return mapped(wrapped, out)


class _Functions(TorchFunctionMode):
    """Calls that never dispatch on a build without MPS: they ask for a tensor of it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in FACTORIES and _is_mps(kwargs.get("device")):
            return MpsTensor(func(*args, **{**kwargs, "device": "cpu"}))
        if name == "to" and not isinstance(args[0], MpsTensor):
            target, dtype, non_blocking, _ = torch._C._nn._parse_to(
                *args[1:], **{k: kwargs[k] for k in kwargs if k != "copy"}
            )
            if _is_mps(target):
                if non_blocking:
                    raise RuntimeError("a copy between host and MPS that does not wait")
                return MpsTensor(args[0].to(dtype or args[0].dtype, copy=True))
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """Operators in which a host tensor comes first never reach an MpsTensor's own dispatch."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_mps = _is_mps(kwargs.get("device")) or any(
            isinstance(each, MpsTensor) for each in tensors_in((args, kwargs))
        )
        return _run(func, args, kwargs) if on_mps else func(*args, **kwargs)


@contextmanager
def fake_mps_machine() -> Iterator[None]:
    """Within this block this thread's torch has a Mac's GPU."""
    with pytest.MonkeyPatch.context() as patch, _Functions(), _Operators():
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        yield


def _is_mps(device: Any) -> bool:
    return device is not None and torch.device(device).type == "mps"


def _unwrap(value: Any) -> Any:
    return value.inner if isinstance(value, MpsTensor) else value
