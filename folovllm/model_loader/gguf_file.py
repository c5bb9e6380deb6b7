"""What a GGUF file says before its data: fields and tensors.

    | GGUF version counts | fields: key, type, value | tensors: name, shape, type, place | data ...

Every size is compared with the file's own before anything is made of it, so a damaged file costs no more than reading
its head. The format is ggml's: docs/gguf.md.

vLLM: none
"""

from __future__ import annotations

import math
import mmap
import struct
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from folovllm.errors import ModelLoadError
from folovllm.utils.checks import wrong

SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""How struct reads a value of each type."""
STRING, ARRAY = 8, 9
CONTROL, USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
MOST_DIMS, LONGEST_NAME = 4, 200
WAY_OUT = "is it whole, and from a converter of today?"


class Array(NamedTuple):
    """A field's values. They are read when they are asked for: a vocabulary is large."""

    kind: int
    length: int
    start: int


class Tensor(NamedTuple):
    type: str
    """As ggml names it: F32, Q4_0."""
    shape: tuple[int, ...]
    """Rows before columns."""
    start: int
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // math.prod(self.shape[:-1])


class GGUFFile:
    """Raises ModelLoadError: it is no such file, or it is damaged; by the field."""

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        except ImportError:
            raise ModelLoadError(f"{path} is read by the package gguf: pip install gguf") from None
        self.path, self.at = path, 4
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # the latter: it is empty
            raise ModelLoadError(f"{path} cannot be read: {error}; was it downloaded to its end?") from None
        if self.data[:4] != b"GGUF":
            raise self.damaged("first four bytes", "be b'GGUF'", self.data[:4])
        if (version := self._number("I", "version")) not in (2, 3):
            raise self.damaged("version", "be 2 or 3, little-endian", version)
        num_tensors, num_fields = self._number("Q", "tensor_count"), self._number("Q", "kv_count")
        self.fields: dict[str, Any] = {}
        for number in range(num_fields):
            name = self._name(f"name of field {number}")
            self.fields[name] = self._value(name)
        self.tensors: dict[str, Tensor] = {}
        for number in range(num_tensors):
            name = self._name(f"name of tensor {number}")
            if (dims := self._number("I", name)) > MOST_DIMS:
                raise self.damaged(f"dimensions of {name}", f"be at most {MOST_DIMS}", dims)
            shape = tuple(self._number("Q", name) for _ in range(dims))[::-1]
            kind, start = self._number("I", name), self._number("Q", name)
            if kind not in GGMLQuantizationType.__members__.values():
                raise self.damaged(f"type of {name}", "be one that the package gguf knows", kind)
            columns, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            if not shape or 0 in shape or shape[-1] % columns or name in self.tensors:
                raise self.damaged(f"shape of {name}", f"be given once, in blocks of {columns} columns", shape)
            size = math.prod(shape) // columns * num_bytes
            self.tensors[name] = Tensor(GGMLQuantizationType(kind).name, shape, start, size)
        step = self.number("general.alignment", int, 32)
        begin = -(-self.at // step) * step
        for name, tensor in self.tensors.items():
            self.at = begin + tensor.start
            self.tensors[name] = tensor._replace(start=self._take(tensor.num_bytes, f"{name} {tensor.shape}"))

    def number(self, name: str, kind: type[int | float], default: Any = None) -> Any:
        """A field's positive number, an int or a float. default None: it must be there."""
        value = self.fields.get(name, default)
        if type(value) is not kind or not value > 0:  # NaN is not
            raise self.damaged(name, f"be a positive {kind.__name__}", value)
        return value

    def values(self, name: str) -> list[Any]:
        """Those of a field that is an array; none where the file has no such field."""
        array = self.fields.get(name, Array(0, 0, 0))
        if not isinstance(array, Array):
            raise self.damaged(name, "be an array", array)
        reader = copy(self)  # another thread may be reading, too
        reader.at = array.start
        if array.kind == STRING:
            return [reader._string(name) for _ in range(array.length)]
        return [*struct.unpack_from(f"<{array.length}{SCALARS[array.kind]}", self.data, array.start)]

    def _value(self, name: str) -> Any:
        kind = self._number("I", name)
        if kind == STRING:
            return self._string(name)
        if kind in SCALARS:
            return self._number(SCALARS[kind], name)
        if kind != ARRAY:
            raise self.damaged(f"type of {name}", "be one of 0 to 12", kind)
        array = Array(self._number("I", name), self._number("Q", name), self.at)
        if array.kind in SCALARS:
            self._take(array.length * struct.calcsize(SCALARS[array.kind]), name)
        elif array.kind == STRING:
            for _ in range(array.length):
                self._take(self._number("Q", name), name)
        else:
            raise self.damaged(f"type of {name}", "be an array of numbers or strings", array.kind)
        return array

    def _take(self, size: int, what: str) -> int:
        """Where the next `size` bytes begin."""
        begin, self.at = self.at, self.at + size
        if self.at > len(self.data):
            ends = f"{what} would end at byte {self.at} of {len(self.data)}"
            raise ModelLoadError(f"{self.path} cannot be read: {ends}; was it downloaded to its end?")
        return begin

    def _number(self, form: str, what: str) -> Any:
        return struct.unpack_from(f"<{form}", self.data, self._take(struct.calcsize(form), what))[0]

    def _string(self, what: str) -> str:
        size = self._number("Q", what)
        begin = self._take(size, what)
        try:
            return self.data[begin : begin + size].decode()
        except UnicodeDecodeError:
            raise self.damaged(what, "be UTF-8", self.data[begin : begin + size]) from None

    def _name(self, what: str) -> str:
        if not (name := self._string(what)).isprintable() or len(name) > LONGEST_NAME:
            raise self.damaged(what, f"be printable, of at most {LONGEST_NAME} characters", name)
        return name

    def damaged(self, what: str, must: str, value: object, way_out: str = WAY_OUT) -> ModelLoadError:
        return ModelLoadError(f"{self.path} cannot be read: {wrong(what, must, value)}; {way_out}")


def open_gguf(path: str | Path) -> GGUFFile:
    """Read once, until the file changes. Raises ModelLoadError: as GGUFFile."""
    path = Path(path)
    stat = path.stat()
    return _opened(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=2)  # a model and its draft
def _opened(path: Path, size: int, changed: int) -> GGUFFile:
    return GGUFFile(path)
