"""Attention and linear recurrences, each behind one call, with fused kernels on CUDA and plain torch elsewhere."""
