"""On PYTHONPATH of every run on the null GPU: Triton's autotuner compiles only the first configuration of a kernel.

fla's kernels have dozens, each of seconds to minutes. Nothing can be timed here, so the first is as good as any.
"""

from triton.runtime.autotuner import Autotuner

Autotuner.prune_configs = lambda self, kwargs: self.configs[:1]
