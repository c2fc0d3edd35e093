# SPDX-License-Identifier: Apache-2.0
"""The operators as typed functions. lambda may be a number."""
from typing import Any, Dict, Optional, Union

import torch
from torch import Tensor

STATS = ("visible", "abs_sum", "square_sum", "negative_mass", "max", "sparse", "focus", "coverage",
         "entropy", "sink_mass", "cancelled", "overlap")

Lambda = Union[Tensor, float]  # one number, [H] or [B, M, H]


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"diffattn: argument '{name}': expected a tensor, got {type(value).__name__}")


def _tensor_of(lam: Lambda, q1: Tensor) -> Tensor:
    """Returns lambda as a tensor. A number applies to all heads and has no gradient."""
    _check_tensor("q1", q1)
    if isinstance(lam, Tensor):
        return lam
    if not isinstance(lam, (int, float)):
        raise TypeError(f"diffattn: argument 'lam': expected a tensor or a number, got {lam!r}")
    exact = torch.float64 if q1.dtype == torch.float64 else torch.float32
    return torch.full((), lam, dtype=exact, device=q1.device)


def _longest(rows: Tensor, offsets: Optional[Tensor]) -> int:
    """Returns the length of the longest sequence, or 0 for shapes that the operator rejects."""
    if isinstance(offsets, Tensor):
        return int(offsets.diff().max()) if offsets.dim() == 1 and offsets.numel() > 1 else 0
    return rows.shape[1] if rows.dim() > 1 else 0


def attention(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Lambda, *,
              scale: Optional[float] = None, scale2: Optional[float] = None, causal: bool = False,
              window: Optional[int] = None, mask: Optional[Tensor] = None,
              key_starts: Optional[Tensor] = None, key_lengths: Optional[Tensor] = None,
              cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None,
              norm_weight: Optional[Tensor] = None, norm_eps: Optional[float] = None,
              out_scale: float = 1.0) -> Tensor:
    """Computes (softmax(scale q1 k1^T) - lam softmax(scale2 q2 k2^T)) v, with gradients.

    q1, q2: [B, M, H, D]. k1, k2: [B, N, Hkv, D]. v: [B, N, Hkv, Dv]. lam: one number, [H] or [B, M, H].
    Returns [B, M, H, Dv]. With cu_seqlens_*, the tensors are packed: [total, H, D].
    scale defaults to D**-0.5, scale2 to scale.
    The token of row m is in column m' = m + N - M.
    causal: row m sees the columns n <= m'.
    window=w: row m sees the columns m' - w < n <= m'. A window hides later columns too, also without causal.
    key_starts, key_lengths: [B], for left and right padding.
    mask: boolean (True: visible) or additive; broadcasts to [B, H, M, N].
    norm_eps: applies an RMS norm to the output of each head, times norm_weight [Dv] if given.
    out_scale: a factor of the result.
    """
    return torch.ops.diffattn.attention(
        q1, q2, k1, k2, v, _tensor_of(lam, q1), scale=scale, scale2=scale2, causal=causal,
        window=window, mask=mask, key_starts=key_starts, key_lengths=key_lengths,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, norm_weight=norm_weight,
        norm_eps=norm_eps, out_scale=out_scale)


def decode(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Lambda, *,
           scale: Optional[float] = None, scale2: Optional[float] = None,
           window: Optional[int] = None, mask: Optional[Tensor] = None,
           key_starts: Optional[Tensor] = None, key_lengths: Optional[Tensor] = None,
           block_table: Optional[Tensor] = None, norm_weight: Optional[Tensor] = None,
           norm_eps: Optional[float] = None, out_scale: float = 1.0) -> Tensor:
    """Computes attention for the last M tokens of each sequence with a KV cache; causal, without gradients.

    The first key_lengths[b] columns of the cache are filled. The arguments are those of `attention`.
    With block_table [B, P] the cache is paged: k1, k2 and v are [pages, page size, Hkv, D], and column n
    of sequence b is row n % page size of page block_table[b, n // page size].
    """
    return torch.ops.diffattn.decode(
        q1, q2, k1, k2, v, _tensor_of(lam, q1), scale=scale, scale2=scale2, window=window,
        mask=mask, key_starts=key_starts, key_lengths=key_lengths, block_table=block_table,
        norm_weight=norm_weight, norm_eps=norm_eps, out_scale=out_scale)


def attention_stats(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, lam: Lambda, *,
                    sparse_threshold: float = 1e-3, **options: Any) -> Dict[str, Tensor]:
    """Returns the statistics of every row of the map by their names in STATS, each [B, M, H].

    They have gradients where these are defined. The options are the scales and the mask options of
    `attention`.
    """
    stats = torch.ops.diffattn.attention_stats(q1, q2, k1, k2, _tensor_of(lam, q1),
                                               sparse_threshold=sparse_threshold, **options)
    return dict(zip(STATS, stats.unbind(-1)))


def attention_map(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, lam: Lambda, *,
                  row_begin: int = 0, row_end: Optional[int] = None, col_begin: int = 0,
                  col_end: Optional[int] = None, rows: Optional[int] = None,
                  cols: Optional[int] = None, **options: Any) -> Tensor:
    """Returns both maps and their difference, [B, H, 3, rows, cols], over a range of rows and columns.

    A cell that covers several entries has the one of largest magnitude, with its sign. The options are the
    scales and the mask options of `attention`.
    """
    lam = _tensor_of(lam, q1)
    _check_tensor("k1", k1)
    row_end = _longest(q1, options.get("cu_seqlens_q")) if row_end is None else row_end
    col_end = _longest(k1, options.get("cu_seqlens_k")) if col_end is None else col_end
    return torch.ops.diffattn.attention_map(
        q1, q2, k1, k2, lam, row_begin, row_end, col_begin, col_end,
        row_end - row_begin if rows is None else rows,
        col_end - col_begin if cols is None else cols, **options)
