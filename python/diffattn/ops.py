# SPDX-License-Identifier: Apache-2.0
"""The operators as typed functions. lambda may be a number."""
from typing import Any, Callable, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from diffattn import _functional

__all__ = ["STATS", "Lambda", "Window", "attention", "attention_map", "attention_stats", "decode"]

STATS = ("visible", "abs_sum", "square_sum", "negative_mass", "max", "sparse", "focus", "coverage",
         "entropy", "sink_mass", "cancelled", "overlap")

Lambda = Union[Tensor, float]  # one number, [H] or [B, M, H]
Window = Union[int, Tuple[int, int]]  # columns up to the row's own, or columns to its left and right


def _check_tensors(**tensors: Any) -> None:
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"diffattn: argument '{name}': expected a tensor, got {type(value).__name__}")
        if value.is_nested:
            raise TypeError(f"diffattn: argument '{name}': expected a dense tensor, got a nested one; pass the packed "
                            f"rows {name}.values() with cu_seqlens_q and cu_seqlens_k = {name}.offsets()")
        if _is_dtensor(value):
            raise TypeError(f"diffattn: argument '{name}': expected a local tensor, got a DTensor, which only "
                            f"attention takes, and in q1, q2, k1, k2 and v together; pass {name}.to_local()")


def _is_dtensor(value: Any) -> bool:
    return type(value).__name__ == "DTensor"  # importing the class takes long


def _tensor_of(lam: Lambda, q1: Tensor) -> Tensor:
    """Returns lambda as a tensor. A number applies to all heads and has no gradient."""
    if isinstance(lam, Tensor):
        return lam
    if not isinstance(lam, (int, float)):
        raise TypeError(f"diffattn: argument 'lam': expected a tensor or a number, got {lam!r}")
    exact = torch.float64 if q1.dtype == torch.float64 else torch.float32
    return torch.full((), lam, dtype=exact, device=q1.device)


def bounds_of(causal: Optional[bool], window: Optional[Window]) -> Dict[str, Any]:
    """Returns causal and the window as options of an operator."""
    if window is None:
        return dict(causal=bool(causal))
    if isinstance(window, (tuple, list)):
        if len(window) != 2 or not all(_is_int(side) and side >= -1 for side in window):
            raise ValueError("diffattn: argument 'window': expected a number or a pair (left, right) of columns, -1 "
                             f"for no bound, got {window!r}")
        return dict(causal=bool(causal), window_left=window[0], window_right=window[1])
    if not _is_int(window):
        raise TypeError("diffattn: argument 'window': expected a number or a pair (left, right), got "
                        f"{type(window).__name__}")
    if causal is False:
        raise ValueError(f"diffattn: argument 'window': expected a pair with causal=False, got {window}, which hides "
                         f"later columns; say window=({window - 1}, -1) for no bound on the right, window="
                         f"({window - 1}, {window - 1}) for both sides, or leave causal out")
    return dict(causal=bool(causal), window=window)


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _call(operator: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls an operator. C++ names the argument `lam` lambda."""
    try:
        return operator(*arguments, **options)
    except RuntimeError as error:
        if "argument 'lambda'" not in str(error):
            raise
        raise RuntimeError(str(error).replace("argument 'lambda'", "argument 'lam'")) from None


def _longest(rows: Tensor, offsets: Optional[Tensor]) -> int:
    """Returns the length of the longest sequence, or 0 for shapes that the operator rejects."""
    if isinstance(offsets, Tensor):
        return int(offsets.diff().max()) if offsets.dim() == 1 and offsets.numel() > 1 else 0
    return rows.shape[1] if rows.dim() > 1 else 0


def attention(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Lambda, *,
              scale: Optional[float] = None, scale2: Optional[float] = None, causal: Optional[bool] = None,
              window: Optional[Window] = None, mask: Optional[Tensor] = None,
              key_starts: Optional[Tensor] = None, key_lengths: Optional[Tensor] = None,
              cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None,
              norm_weight: Optional[Tensor] = None, norm_eps: Optional[float] = None,
              out_scale: float = 1.0) -> Tensor:
    """Computes (softmax(scale q1 k1^T) - lam softmax(scale2 q2 k2^T)) v, with gradients.

    q1, q2: [B, M, H, D]. k1, k2: [B, N, Hkv, D]. v: [B, N, Hkv, Dv]. lam: one number, [H] or [B, M, H].
    q2 may have fewer heads than q1 (a divisor of H, a multiple of Hkv): consecutive heads then share a noise head.
    Returns [B, M, H, Dv]. With cu_seqlens_*, the tensors are packed: [total, H, D].
    scale defaults to D**-0.5, scale2 to scale.
    The token of row m is in column m' = m + N - M.
    causal: row m sees the columns n <= m'.
    window=(l, r): row m sees the columns m' - l <= n <= m' + r; -1 is no bound. window=w is (w - 1, 0): the last w
    columns up to its own. A plain number with causal=False contradicts itself and is refused.
    key_starts, key_lengths: [B], for left and right padding.
    mask: boolean (True: visible) or additive; broadcasts to [B, H, M, N].
    norm_eps: applies an RMS norm to the output of each head, times norm_weight [Dv] if given.
    out_scale: a factor of the result.

    >>> q1, q2 = torch.randn(2, 1, 5, 4, 8).unbind(0)        # 4 heads
    >>> k1, k2 = torch.randn(2, 1, 5, 2, 8).unbind(0)        # 2 kv heads
    >>> v = torch.randn(1, 5, 2, 16)
    >>> diffattn.attention(q1, q2, k1, k2, v, 0.3, causal=True, norm_eps=1e-5, out_scale=0.8).shape
    torch.Size([1, 5, 4, 16])
    """
    options = dict(scale=scale, scale2=scale2, mask=mask, key_starts=key_starts, key_lengths=key_lengths,
                   cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, norm_weight=norm_weight, norm_eps=norm_eps,
                   out_scale=out_scale)
    if _is_dtensor(q1):
        from diffattn._dtensor import attention_of_shards
        return attention_of_shards(attention, q1, q2, k1, k2, v, lam, dict(options, causal=causal, window=window))  # type: ignore[arg-type]
    _check_tensors(q1=q1, q2=q2, k1=k1, k2=k2, v=v)
    operator = _functional.attention if _functional.active() else torch.ops.diffattn.attention
    out: Tensor = _call(operator, q1, q2, k1, k2, v, _tensor_of(lam, q1), **bounds_of(causal, window), **options)
    return out


def decode(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Lambda, *,
           scale: Optional[float] = None, scale2: Optional[float] = None,
           window: Optional[Window] = None, mask: Optional[Tensor] = None,
           key_starts: Optional[Tensor] = None, key_lengths: Optional[Tensor] = None,
           block_table: Optional[Tensor] = None, norm_weight: Optional[Tensor] = None,
           norm_eps: Optional[float] = None, out_scale: float = 1.0) -> Tensor:
    """Computes attention for the last M tokens of each sequence with a KV cache; causal, without gradients.

    The first key_lengths[b] columns of the cache are filled. The arguments are those of `attention`: q2 may have fewer
    heads than q1.
    With block_table [B, P] the cache is paged: k1, k2 and v are [pages, page size, Hkv, D], and column n
    of sequence b is row n % page size of page block_table[b, n // page size].

    >>> q1, q2 = torch.randn(2, 3, 1, 4, 8).unbind(0)        # the newest token of 3 sequences
    >>> k1, k2 = torch.randn(2, 3, 64, 4, 8).unbind(0)       # caches with room for 64
    >>> v = torch.randn(3, 64, 4, 16)
    >>> diffattn.decode(q1, q2, k1, k2, v, 0.3, key_lengths=torch.tensor([10, 64, 1])).shape
    torch.Size([3, 1, 4, 16])
    """
    _check_tensors(q1=q1, q2=q2, k1=k1, k2=k2, v=v)
    if torch.is_grad_enabled():
        given = dict(q1=q1, q2=q2, k1=k1, k2=k2, v=v, lam=lam, mask=mask, norm_weight=norm_weight)
        for name, tensor in given.items():
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                raise RuntimeError(f"diffattn: argument '{name}': expected a tensor without gradients, since decode "
                                   "computes none, got one that requires them; call diffattn.attention, or decode "
                                   "under torch.no_grad()")
    bounds = bounds_of(None, window)
    del bounds["causal"]  # decode always is
    out: Tensor = _call(
        torch.ops.diffattn.decode, q1, q2, k1, k2, v, _tensor_of(lam, q1), scale=scale, scale2=scale2, mask=mask,
        key_starts=key_starts, key_lengths=key_lengths, block_table=block_table,
        norm_weight=norm_weight, norm_eps=norm_eps, out_scale=out_scale, **bounds)
    return out


def attention_stats(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, lam: Lambda, *,
                    sparse_threshold: float = 1e-3, scale: Optional[float] = None, scale2: Optional[float] = None,
                    causal: Optional[bool] = None, window: Optional[Window] = None, mask: Optional[Tensor] = None,
                    key_starts: Optional[Tensor] = None, key_lengths: Optional[Tensor] = None,
                    cu_seqlens_q: Optional[Tensor] = None,
                    cu_seqlens_k: Optional[Tensor] = None) -> Dict[str, Tensor]:
    """Returns the statistics of every row of the map by their names in STATS, each [B, M, H].

    They have gradients where these are defined. The other arguments are those of `attention`: q2 may have fewer heads
    than q1. The statistics have all heads of q1.

    >>> q1, q2, k1, k2 = torch.randn(4, 1, 5, 2, 8).unbind(0)
    >>> stats = diffattn.attention_stats(q1, q2, k1, k2, 0.3, causal=True)
    >>> stats["visible"][0, :, 0].tolist()                   # columns that each row sees
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    _check_tensors(q1=q1, q2=q2, k1=k1, k2=k2)
    stats = _call(torch.ops.diffattn.attention_stats, q1, q2, k1, k2, _tensor_of(lam, q1),
                  sparse_threshold=sparse_threshold, scale=scale, scale2=scale2, mask=mask, key_starts=key_starts,
                  key_lengths=key_lengths, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                  **bounds_of(causal, window))
    return dict(zip(STATS, stats.unbind(-1)))


def attention_map(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, lam: Lambda, *,
                  row_begin: int = 0, row_end: Optional[int] = None, col_begin: int = 0,
                  col_end: Optional[int] = None, rows: Optional[int] = None, cols: Optional[int] = None,
                  scale: Optional[float] = None, scale2: Optional[float] = None, causal: Optional[bool] = None,
                  window: Optional[Window] = None, mask: Optional[Tensor] = None,
                  key_starts: Optional[Tensor] = None, key_lengths: Optional[Tensor] = None,
                  cu_seqlens_q: Optional[Tensor] = None, cu_seqlens_k: Optional[Tensor] = None) -> Tensor:
    """Returns both maps and their difference, [B, H, 3, rows, cols], over a range of rows and columns.

    A cell that covers several entries has the one of largest magnitude, with its sign. The other arguments are
    those of `attention`: q2 may have fewer heads than q1. The maps have all heads of q1.

    >>> q1, q2, k1, k2 = torch.randn(4, 1, 64, 2, 8).unbind(0)
    >>> diffattn.attention_map(q1, q2, k1, k2, 0.3, causal=True, rows=8, cols=8).shape
    torch.Size([1, 2, 3, 8, 8])
    """
    _check_tensors(q1=q1, q2=q2, k1=k1, k2=k2)
    row_end = _longest(q1, cu_seqlens_q) if row_end is None else row_end
    col_end = _longest(k1, cu_seqlens_k) if col_end is None else col_end
    maps: Tensor = _call(
        torch.ops.diffattn.attention_map, q1, q2, k1, k2, _tensor_of(lam, q1), row_begin, row_end, col_begin, col_end,
        row_end - row_begin if rows is None else rows, col_end - col_begin if cols is None else cols,
        scale=scale, scale2=scale2, mask=mask, key_starts=key_starts, key_lengths=key_lengths,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, **bounds_of(causal, window))
    return maps
