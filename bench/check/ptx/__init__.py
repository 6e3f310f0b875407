"""Execute compiled kernels without a GPU: NVIDIA's PTX, interpreted with numpy.

In: the PTX that Triton compiled for a real target, and the arguments of a launch. Out: the tensors as the kernel leaves
them, the instructions that were executed, or a Fault that names the instruction. program.py reads the text, machine.py
executes it, arithmetic.py, transfer.py and matrix.py have the instructions, memory.py the memories and their checks.
driver.py is a Triton driver that launches here, so that the real host code decides what is compiled and launched.

Checked: every access is aligned and within a tensor; no two threads meet in shared memory without a barrier between
them, asynchronous copies and products included; no block reads or overwrites what another block writes.

Not modelled: time, the rounding of approximate instructions (ex2, div.full), the order in which a tensor core adds, and
what the assembler does after PTX.
"""
