# SPDX-License-Identifier: Apache-2.0
"""Differential attention as a module.

`DiffAttention` has an argument for everything in which published models differ. `preset` makes the published
variants by name.
"""
import math
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from diffattn.ops import attention

KINDS = ("v1", "v2", "grouped", "temperature")


def lambda_init(layer_index: int) -> float:
    """Returns 0.8 - 0.6 exp(-0.3 l), where l = 0 is the first layer."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer_index)


def _one_of(name: str, value: Any, allowed: Tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ValueError(f"diffattn: argument '{name}': expected one of {allowed}, got {value!r}")
    return value


class DiffAttention(nn.Module):
    """Projections, differential heads and output projection: [B, M, embed_dim] to the same shape.

    kind: "v1" (two queries and two keys per head, values of width 2 head_dim), "v2" (two queries share a
    key; values of width head_dim), "grouped" (num_heads signal heads share noise_heads noise heads; the
    noise head is the last of its group) or "temperature" (map 2 is map 1 at a higher temperature).
    num_heads: number of output heads; in "v1" each is a pair of sub-heads. num_kv_heads defaults to
    num_heads (for "grouped", to noise_heads). head_dim defaults to embed_dim / num_heads, and to half of
    that for "v1" and "grouped".
    layout: the order of sub-heads in "v1". Head j has the sub-heads 2j and 2j + 1 ("stripes") or j and
    j + count/2 ("halves").
    rotary: None, "interleaved" or "half". head_norm: "affine", "plain" or None.
    lambda_kind: "vectors" (exp(q1 k1) - exp(q2 k2) + lambda_init), "token" (a sigmoid per token and head)
    or "fixed" (lambda_init). lambda_init defaults to the paper's value for layer_index.
    causal, window: as in diffattn.attention.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, num_kv_heads: Optional[int] = None,
                 head_dim: Optional[int] = None, kind: str = "v1",
                 noise_heads: Optional[int] = None, temperature: float = 2.0,
                 layout: str = "stripes", rotary: Optional[str] = None,
                 rotary_theta: float = 10000.0, head_norm: Optional[str] = "affine",
                 norm_eps: float = 1e-5, lambda_kind: str = "vectors", layer_index: int = 0,
                 lambda_init: Optional[float] = None, lambda_std: float = 0.1, bias: bool = False,
                 causal: bool = True, window: Optional[int] = None, out_name: str = "out_proj",
                 device: Any = None, dtype: Optional[torch.dtype] = None):
        super().__init__()
        self.kind = _one_of("kind", kind, KINDS)
        self.layout = _one_of("layout", layout, ("stripes", "halves"))
        self.rotary = _one_of("rotary", rotary, (None, "interleaved", "half"))
        self.head_norm = _one_of("head_norm", head_norm, ("affine", "plain", None))
        self.lambda_kind = _one_of("lambda_kind", lambda_kind, ("vectors", "token", "fixed"))
        if (kind == "grouped") != (noise_heads is not None):
            raise ValueError("diffattn: argument 'noise_heads': expected a number for kind 'grouped' and "
                             f"None for others, got {noise_heads} for '{kind}'")
        wide = kind in ("v1", "grouped")  # values of width 2 head_dim
        if num_heads < 1:
            raise ValueError(f"diffattn: argument 'num_heads': expected at least 1, got {num_heads}")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.noise_heads = noise_heads or num_heads
        self.num_kv_heads = num_kv_heads or self.noise_heads
        if num_heads % self.noise_heads or num_heads % self.num_kv_heads:
            raise ValueError(f"diffattn: argument 'num_heads': expected a multiple of the "
                             f"{self.num_kv_heads} kv heads and {self.noise_heads} noise heads, "
                             f"got {num_heads}")
        if head_dim is None and embed_dim % (num_heads * (2 if wide else 1)):
            raise ValueError("diffattn: argument 'head_dim': expected a number, since embed_dim "
                             f"{embed_dim} does not divide into {num_heads} heads, got None")
        self.head_dim = d = head_dim or embed_dim // num_heads // (2 if wide else 1)
        if rotary is not None and d % 2:
            raise ValueError("diffattn: argument 'head_dim': expected an even number for a rotary "
                             f"embedding, got {d}")
        self.value_dim = 2 * d if wide else d
        self.scale = d**-0.5
        self.temperature, self.rotary_theta = temperature, rotary_theta
        self.norm_eps, self.causal, self.window = norm_eps, causal, window
        # The argument hides the function of the same name.
        self.lambda_init = globals()["lambda_init"](layer_index) if lambda_init is None \
            else lambda_init
        self.lambda_std = lambda_std
        self.out_name = out_name

        factory: Dict[str, Any] = dict(device=device, dtype=dtype)
        queries = {"v1": 2 * num_heads, "v2": 2 * num_heads, "temperature": num_heads,
                   "grouped": num_heads + self.noise_heads}[kind]
        keys = self.num_kv_heads * (2 if wide else 1)
        self.q_proj = nn.Linear(embed_dim, queries * d, bias=bias, **factory)
        self.k_proj = nn.Linear(embed_dim, keys * d, bias=bias, **factory)
        self.v_proj = nn.Linear(embed_dim, self.num_kv_heads * self.value_dim, bias=bias, **factory)
        setattr(self, out_name, nn.Linear(num_heads * self.value_dim, embed_dim, bias=bias,
                                          **factory))
        if lambda_kind == "vectors":
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                self.register_parameter(name, nn.Parameter(torch.empty(d, **factory)))
        elif lambda_kind == "token":
            self.lambda_proj = nn.Linear(embed_dim, num_heads, bias=False, **factory)
        if head_norm == "affine":
            self.subln = nn.RMSNorm(self.value_dim, eps=norm_eps, **factory)
        self.reset_lambda()

    def reset_lambda(self) -> None:
        """Initialises the lambda vectors from N(0, lambda_std^2)."""
        if self.lambda_kind == "vectors":
            for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
                nn.init.normal_(vector, 0.0, self.lambda_std)

    def lambda_value(self, x: Tensor) -> Tensor:
        """Returns lambda in float32: a scalar, or [B, M, H] for lambda_kind "token"."""
        if self.lambda_kind == "token":
            return torch.sigmoid(self.lambda_proj(x).float())
        if self.lambda_kind == "fixed":
            return torch.full((), self.lambda_init, device=x.device)
        first = (self.lambda_q1.float() * self.lambda_k1.float()).sum().exp()
        second = (self.lambda_q2.float() * self.lambda_k2.float()).sum().exp()
        return first - second + self.lambda_init

    def forward(self, x: Tensor, *, positions: Optional[Tensor] = None,
                causal: Optional[bool] = None, mask: Optional[Tensor] = None,
                key_starts: Optional[Tensor] = None,
                key_lengths: Optional[Tensor] = None) -> Tensor:
        """Computes the layer for x [B, M, embed_dim].

        positions: [M] or [B, M] for the rotary embedding; default 0, 1, .... causal overrides the module's
        causal. mask, key_starts and key_lengths are as in diffattn.attention and combine with the module's
        window.
        """
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            raise ValueError(f"diffattn: argument 'x': expected shape [B, M, {self.embed_dim}], got "
                             f"{list(x.shape)}")
        batch, rows, _ = x.shape
        q = self.q_proj(x).view(batch, rows, -1, self.head_dim)
        k = self.k_proj(x).view(batch, rows, -1, self.head_dim)
        v = self.v_proj(x)
        if self.rotary is not None:
            if positions is None:
                positions = torch.arange(rows, device=x.device)
            q, k = self._rotate(q, positions), self._rotate(k, positions)
        q1, q2 = self._split_queries(q)
        k1, k2 = self._split_keys(k)
        scale2 = self.scale / self.temperature if self.kind == "temperature" else None
        normed = self.head_norm is not None
        out = attention(
            q1, q2, k1, k2, self._values(v), self.lambda_value(x), scale=self.scale, scale2=scale2,
            causal=self.causal if causal is None else causal, window=self.window, mask=mask,
            key_starts=key_starts, key_lengths=key_lengths,
            norm_weight=self.subln.weight if self.head_norm == "affine" else None,
            norm_eps=self.norm_eps if normed else None,
            out_scale=1 - self.lambda_init if normed else 1.0)
        return getattr(self, self.out_name)(out.flatten(-2))

    def extra_repr(self) -> str:
        return (f"{self.kind}, heads={self.num_heads}, kv_heads={self.num_kv_heads}, "
                f"head_dim={self.head_dim}, lambda_init={self.lambda_init:.4g}")

    def _split_queries(self, q: Tensor) -> Tuple[Tensor, Tensor]:
        if self.kind == "temperature":
            return q, q
        if self.kind == "grouped":
            signals = self.num_heads // self.noise_heads
            groups = q.unflatten(2, (self.noise_heads, signals + 1))
            noise = groups[:, :, :, signals:].expand(-1, -1, -1, signals, -1)
            return groups[:, :, :, :signals].flatten(2, 3), noise.flatten(2, 3)
        return self._pair(q)

    def _split_keys(self, k: Tensor) -> Tuple[Tensor, Tensor]:
        return self._pair(k) if self.kind in ("v1", "grouped") else (k, k)

    def _pair(self, heads: Tensor) -> Tuple[Tensor, Tensor]:
        if self.layout == "halves":
            first, second = heads.chunk(2, dim=2)
        else:
            first, second = heads.unflatten(2, (-1, 2)).unbind(3)
        return first, second

    def _values(self, v: Tensor) -> Tensor:
        """Returns the values as [B, N, Hkv, Dv]. In layout "halves", the halves of a value are separate heads."""
        if self.layout == "halves" and self.value_dim == 2 * self.head_dim:
            first, second = v.unflatten(-1, (-1, self.head_dim)).chunk(2, dim=2)
            return torch.cat((first, second), dim=-1)
        return v.unflatten(-1, (self.num_kv_heads, self.value_dim))

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Applies the rotary embedding in float32 or better."""
        exact = torch.promote_types(heads.dtype, torch.float32)
        exponents = torch.arange(0, self.head_dim, 2, device=heads.device, dtype=exact)
        frequencies = self.rotary_theta**(-exponents / self.head_dim)
        angles = positions.to(exact)[..., None, None] * frequencies
        cos, sin = angles.cos(), angles.sin()  # [(B,) M, 1, D/2]
        wide = heads.to(exact)
        if self.rotary == "interleaved":
            a, b = wide.unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = wide.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return turned.to(heads.dtype)


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


def preset(name: str, embed_dim: int, num_heads: int, *, num_kv_heads: Optional[int] = None,
           layer_index: int = 0, **options: Any) -> DiffAttention:
    """Returns a published variant of attention, with its parameter names.

    Head counts are those of config.json: a pair of sub-heads is one differential head. Other options are
    those of DiffAttention.
    """
    make = _PRESETS[_one_of("name", name, tuple(_PRESETS))]
    point = make(num_heads, num_kv_heads or num_heads, layer_index)
    if "head_dim" not in options:
        if embed_dim % num_heads:
            raise ValueError("diffattn: argument 'head_dim': expected a number, since embed_dim "
                             f"{embed_dim} does not divide into {num_heads} heads, got None")
        point["head_dim"] = embed_dim // num_heads
    return DiffAttention(embed_dim, **{**point, **options})
