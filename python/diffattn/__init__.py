# SPDX-License-Identifier: Apache-2.0
"""Fused differential attention for PyTorch.

    out = diffattn.attention(q1, q2, k1, k2, v, lam, causal=True)

computes (softmax(q1 k1^T / sqrt(d)) - lam softmax(q2 k2^T / sqrt(d))) v in one operator, with
gradients. Importing this package loads the operators torch.ops.diffattn.*.
"""
import pathlib

import torch

_LIBRARY = pathlib.Path(__file__).parent / "libdiffattn.so"
torch.ops.load_library(str(_LIBRARY))

from diffattn.ops import attention, attention_map, attention_stats, decode  # noqa: E402

__all__ = ["attention", "attention_map", "attention_stats", "decode"]
