"""What runs PTX notices what a GPU would get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.m11.cuda.ptx.arithmetic import ARITHMETIC
from tests.m11.cuda.ptx.block import Block, Memory, RefusedError
from tests.m11.cuda.ptx.matrices import MATRICES
from tests.m11.cuda.ptx.movement import MOVEMENT
from tests.m11.cuda.ptx.program import Program

ADDRESSES = """
    ld.param.b64 %rd1, [kernel_param_0];
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    cvt.u64.u32 %rd2, %r2;
    add.s64 %rd3, %rd1, %rd2;
"""
COPY = "griddepcontrol.wait; cp.async.ca.shared.global [%r2], [%rd3], 4, 4; cp.async.commit_group;"
NEIGHBOURS = "xor.b32 %r3, %r2, 128; ld.shared.b32 %r4, [%r3]; st.global.b32 [%rd3], %r4; ret;"


def run(body: str, length: int = 64) -> list[int]:
    """What 64 threads, in two warps, make of the numbers from 0 on."""
    program = Program(f".entry kernel( .param .u64 kernel_param_0 ) .reqntid 64 {{ {ADDRESSES} {body} }}")
    numbers = np.arange(length, dtype=np.int32)
    memory = Memory([numbers.view(np.uint8)])
    operations = {**ARITHMETIC, **MATRICES, **MOVEMENT}
    params = [np.array(memory.addresses)]
    Block(program, memory, params, (0, 0, 0), (1, 1, 1), 256, operations, waits=True).run([0, 1])
    memory.bring_back()
    return numbers.tolist()


def test_warps_exchange_numbers_over_shared_memory() -> None:
    assert run(f"{COPY} cp.async.wait_group 0; bar.sync 0; {NEIGHBOURS}") == [*range(32, 64), *range(32)]


@pytest.mark.parametrize("between", ["cp.async.wait_group 1; bar.sync 0;", "cp.async.wait_group 0;"])
def test_what_has_not_been_waited_for_is_not_there(between: str) -> None:
    """The copy, or the other warp's."""
    assert -1 in run(f"{COPY} {between} {NEIGHBOURS}")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("ld.global.b32 %r4, [%rd3]; ret;", "before the kernel in front is over"),
        ("griddepcontrol.wait; ld.global.b32 %r4, [%rd3+256]; ret;", "where no tensor is"),
        ("griddepcontrol.wait; ld.global.v2.b32 {%r4, %r5}, [%rd3]; ret;", "at an odd address"),
        ("setp.lt.s32 %p1, %r1, 5; @%p1 bra $L1; bar.sync 0;\n$L1:\nret;", "some threads of a warp"),
    ],
)
def test_what_a_gpu_would_refuse(body: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        run(body)
