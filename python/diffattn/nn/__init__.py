# SPDX-License-Identifier: Apache-2.0
"""Differential attention as a module.

`DiffAttention` has an argument for everything in which published models differ. `preset` makes the published
variants by name. `KvCache` holds keys and values for generation.
"""
from diffattn.nn.attention import KINDS, DiffAttention, lambda_init
from diffattn.nn.cache import KvCache
from diffattn.nn.presets import Options, preset

__all__ = ["KINDS", "DiffAttention", "KvCache", "Options", "lambda_init", "preset"]
