"""What a kernel computes as it was compiled for a GPU, without one: its PTX, run instruction by instruction.

Triton's interpreter runs a kernel's source, so it does not see what the compiler makes of it: layouts, pipelined
copies, matrix instructions, barriers, assembly. Here all of that is run. Programs run one after the other, the warps of
one in turn, each up to the next barrier, in an order that a seed shuffles. Where the hardware is free, the worst comes:

    cp.async           the place in shared memory is spoilt at once, and the numbers come when they are waited for
    shared memory      holds 0xFF bytes at the start
    addresses          of tensors, a read or write elsewhere or of an odd alignment is an error
    griddepcontrol     memory is neither read nor written before the wait

It cannot know what two programs do to each other that run at the same time, how the memory model orders them, what the
assembler makes of PTX, and how long anything takes. Special functions are NumPy's.

The PTX ISA: docs.nvidia.com/cuda/parallel-thread-execution
"""
