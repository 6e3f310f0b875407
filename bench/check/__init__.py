"""Correctness and speed: are the records true, are the kernels right, how fast is this machine?

In: record files with their weights (verify), nothing but the machine itself (perf, kernels). Out: a verdict for each
record, a table of checks or measurements on the terminal, and an exit code. verify.py evaluates or trains a run again
and compares; perf.py measures speed ratios; kernels.py prints the check of the attention kernels, which
models/kernels/check.py performs; timing.py times them on CUDA; binaries.py compiles them for GPUs that are not here;
ptx/ executes what was compiled.
This room may use run, the shared modules, models and tasks. It changes no record; the only file that it writes is the
one named by `bench kernels --static --out`.
"""
