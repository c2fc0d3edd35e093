# SPDX-License-Identifier: Apache-2.0
"""Published variants of attention by name."""
from typing import Any, Callable, Dict, Optional, Union

import torch
from typing_extensions import TypedDict, Unpack

from diffattn.nn.attention import DiffAttention, lambda_init, one_of
from diffattn.ops import Window

__all__ = ["Options", "preset"]


def _pairs(name: str, count: int) -> int:
    if count < 2 or count % 2:
        raise ValueError(f"diffattn: argument '{name}': expected an even number, since heads come in "
                         f"pairs, got {count}")
    return count // 2


def _v1(heads: int, kv_heads: int, layer: int) -> Dict[str, Any]:
    return dict(num_heads=_pairs("num_heads", heads), num_kv_heads=_pairs("num_kv_heads", kv_heads),
                layer_index=layer)


_PRESETS: Dict[str, Callable[[int, int, int], Dict[str, Any]]] = {
    "microsoft_v1": lambda h, kv, l: dict(_v1(h, kv, l), rotary="interleaved"),
    "microsoft_v2": lambda h, kv, l: dict(num_heads=h, num_kv_heads=kv, kind="v2", head_norm=None,
                                          lambda_kind="token", rotary="interleaved",
                                          out_name="o_proj"),
    "diffllama": lambda h, kv, l: dict(_v1(h, kv, l), layout="halves", head_norm="plain",
                                       rotary="half", out_name="o_proj"),
    "motif_2_6b": lambda h, kv, l: dict(_v1(h, kv, l), rotary="half", out_name="o_proj",
                                        lambda_init=lambda_init(l - 1)),
    "motif_2_12_7b": lambda h, kv, l: dict(kind="grouped", num_heads=h - kv // 2,
                                           num_kv_heads=_pairs("num_kv_heads", kv),
                                           noise_heads=kv // 2, rotary="half", out_name="o_proj",
                                           lambda_init=lambda_init(l - 1)),
    "temperature": lambda h, kv, l: dict(kind="temperature", num_heads=h, num_kv_heads=kv,
                                         lambda_kind="fixed", head_norm=None, rotary="half",
                                         layer_index=l, out_name="o_proj"),
}


class Options(TypedDict, total=False):
    """The options of DiffAttention that `preset` takes."""
    head_dim: int
    rotary: Optional[str]
    rotary_theta: float
    norm_eps: float
    lambda_init: float
    lambda_std: float
    bias: bool
    causal: bool
    window: Optional[Window]
    device: Union[torch.device, str, None]
    dtype: Optional[torch.dtype]


def preset(name: str, embed_dim: int, num_heads: int, *, num_kv_heads: Optional[int] = None,
           layer_index: int = 0, **options: Unpack[Options]) -> DiffAttention:
    """Returns a published variant of attention, with its parameter names.

    Head counts are those of config.json: a pair of sub-heads is one differential head. Other options are
    those of DiffAttention.

    >>> diffattn.nn.preset("diffllama", 64, 8, num_kv_heads=4, layer_index=2)(torch.randn(1, 5, 64)).shape
    torch.Size([1, 5, 64])
    """
    make = _PRESETS[one_of("name", name, tuple(_PRESETS))]
    point = make(num_heads, num_kv_heads or num_heads, layer_index)
    if "head_dim" not in options:
        if embed_dim % num_heads:
            raise ValueError("diffattn: argument 'head_dim': expected a number, since embed_dim "
                             f"{embed_dim} does not divide into {num_heads} heads, got None")
        point["head_dim"] = embed_dim // num_heads
    return DiffAttention(embed_dim, **{**point, **options})
