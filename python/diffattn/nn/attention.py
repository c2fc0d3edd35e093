# SPDX-License-Identifier: Apache-2.0
"""The attention layer."""
import math
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from diffattn.nn.cache import KvCache
from diffattn.ops import Window, attention, bounds_of, decode

__all__ = ["KINDS", "DiffAttention", "lambda_init"]

KINDS = ("v1", "v2", "grouped", "temperature")


def lambda_init(layer_index: int) -> float:
    """Returns 0.8 - 0.6 exp(-0.3 l), where l = 0 is the first layer.

    >>> round(diffattn.nn.lambda_init(0), 3)
    0.2
    """
    return 0.8 - 0.6 * math.exp(-0.3 * layer_index)


def one_of(name: str, value: Any, allowed: Tuple[Any, ...]) -> Any:
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

    >>> layer = diffattn.nn.DiffAttention(64, 4, kind="v2", lambda_kind="token", head_norm=None)
    >>> layer(torch.randn(2, 9, 64)).shape
    torch.Size([2, 9, 64])
    """

    def __init__(self, embed_dim: int, num_heads: int, *, num_kv_heads: Optional[int] = None,
                 head_dim: Optional[int] = None, kind: str = "v1",
                 noise_heads: Optional[int] = None, temperature: float = 2.0,
                 layout: str = "stripes", rotary: Optional[str] = None,
                 rotary_theta: float = 10000.0, head_norm: Optional[str] = "affine",
                 norm_eps: float = 1e-5, lambda_kind: str = "vectors", layer_index: int = 0,
                 lambda_init: Optional[float] = None, lambda_std: float = 0.1, bias: bool = False,
                 causal: bool = True, window: Optional[Window] = None, out_name: str = "out_proj",
                 device: Any = None, dtype: Optional[torch.dtype] = None):
        super().__init__()
        self.kind = one_of("kind", kind, KINDS)
        self.layout = one_of("layout", layout, ("stripes", "halves"))
        self.rotary = one_of("rotary", rotary, (None, "interleaved", "half"))
        self.head_norm = one_of("head_norm", head_norm, ("affine", "plain", None))
        self.lambda_kind = one_of("lambda_kind", lambda_kind, ("vectors", "token", "fixed"))
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
        bounds_of(causal, window)  # refuses what contradicts itself
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
        """Initialises the lambda vectors from N(0, lambda_std^2).

        >>> diffattn.nn.DiffAttention(32, 2).reset_lambda()
        """
        if self.lambda_kind == "vectors":
            for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
                nn.init.normal_(vector, 0.0, self.lambda_std)

    def lambda_value(self, x: Tensor) -> Tensor:
        """Returns lambda in float32: a scalar, or [B, M, H] for lambda_kind "token".

        >>> diffattn.nn.DiffAttention(32, 2, lambda_kind="fixed").lambda_value(torch.randn(1, 3, 32)).item()
        0.20000000298023224
        """
        if self.lambda_kind == "token":
            return torch.sigmoid(self.lambda_proj(x).float())
        if self.lambda_kind == "fixed":
            return torch.full((), self.lambda_init, device=x.device)
        first = (self.lambda_q1.float() * self.lambda_k1.float()).sum().exp()
        second = (self.lambda_q2.float() * self.lambda_k2.float()).sum().exp()
        return first - second + self.lambda_init

    def forward(self, x: Tensor, *, context: Optional[Tensor] = None, cache: Optional[KvCache] = None,
                positions: Optional[Tensor] = None, causal: Optional[bool] = None, mask: Optional[Tensor] = None,
                key_starts: Optional[Tensor] = None, key_lengths: Optional[Tensor] = None) -> Tensor:
        """Computes the layer for x [B, M, embed_dim].

        context [B, N, embed_dim]: cross-attention. Keys and values come from it; it uses no rotary embedding, and is
        not causal unless `causal` says so. cache: with a context, the first call fills it and later calls read it
        (context may then be None). Without one, x is the continuation of the tokens in the cache.
        positions: [M] or [B, M] for the rotary embedding; the default continues those of the cache. causal overrides
        the module's causal. mask, key_starts and key_lengths are as in diffattn.attention and combine with the
        module's window.

        >>> layer = diffattn.nn.DiffAttention(32, 2)
        >>> x, source = torch.randn(1, 3, 32), torch.randn(1, 7, 32)
        >>> layer(x).shape, layer(x, context=source).shape
        (torch.Size([1, 3, 32]), torch.Size([1, 3, 32]))
        """
        self._check("x", x)
        rows = x.shape[1]
        crossed = context is not None or (cache is not None and cache.crossed)
        if context is not None:
            self._check("context", context)
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        if crossed:
            k, v = self._source(context, cache)
        else:
            k, v = self._keys_and_values(x)
            if self.rotary is not None:
                if positions is None:
                    positions = torch.arange(rows, device=x.device) + (0 if cache is None else len(cache))
                q, k = self._rotate(q, positions), self._rotate(k, positions)
            if cache is not None:
                cache.append(k, v)
                k, v = cache.contents()
        if causal is None and not crossed:
            causal = self.causal
        return self._attend(x, q, k, v, causal, mask, key_starts, key_lengths)

    def _check(self, name: str, tensor: Tensor) -> None:
        if tensor.dim() != 3 or tensor.shape[-1] != self.embed_dim:
            raise ValueError(f"diffattn: argument '{name}': expected shape [B, M, {self.embed_dim}], got "
                             f"{list(tensor.shape)}")

    def _keys_and_values(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        return self.k_proj(x).unflatten(-1, (-1, self.head_dim)), self._values(self.v_proj(x))

    def _source(self, context: Optional[Tensor], cache: Optional[KvCache]) -> Tuple[Tensor, Tensor]:
        """Returns keys and values of the context, from the cache if they are there."""
        if cache is None:
            assert context is not None
            return self._keys_and_values(context)
        if len(cache) == 0:
            assert context is not None
            cache.append(*self._keys_and_values(context))
            cache.crossed = True
        elif not cache.crossed:
            raise ValueError("diffattn: argument 'cache': expected an empty one or one of a context, got one of "
                             f"{len(cache)} tokens of x")
        return cache.contents()

    def _attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: Optional[bool], mask: Optional[Tensor],
                key_starts: Optional[Tensor], key_lengths: Optional[Tensor]) -> Tensor:
        q1, q2 = self._split_queries(q)
        k1, k2 = self._split_keys(k)
        scale2 = self.scale / self.temperature if self.kind == "temperature" else None
        normed = self.head_norm is not None
        weight = self.subln.weight if self.head_norm == "affine" else None
        eps, out_scale = (self.norm_eps, 1 - self.lambda_init) if normed else (None, 1.0)
        lam = self.lambda_value(x)
        if causal and x.shape[1] == 1 and k.shape[1] > 1 and not torch.is_grad_enabled():
            out = decode(q1, q2, k1, k2, v, lam, scale=self.scale, scale2=scale2, window=self.window, mask=mask,
                         key_starts=key_starts, key_lengths=key_lengths, norm_weight=weight, norm_eps=eps,
                         out_scale=out_scale)
        else:
            out = attention(q1, q2, k1, k2, v, lam, scale=self.scale, scale2=scale2, causal=causal,
                            window=self.window, mask=mask, key_starts=key_starts, key_lengths=key_lengths,
                            norm_weight=weight, norm_eps=eps, out_scale=out_scale)
        projected: Tensor = getattr(self, self.out_name)(out.flatten(-2))
        return projected

    def extra_repr(self) -> str:
        return (f"{self.kind}, heads={self.num_heads}, kv_heads={self.num_kv_heads}, "
                f"head_dim={self.head_dim}, lambda_init={self.lambda_init:.4g}")

    def _split_queries(self, q: Tensor) -> Tuple[Tensor, Tensor]:
        if self.kind == "temperature":
            return q, q
        if self.kind == "grouped":
            signals = self.num_heads // self.noise_heads
            groups = q.unflatten(2, (self.noise_heads, signals + 1))
            return groups[:, :, :, :signals].flatten(2, 3), groups[:, :, :, signals]
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
