# SPDX-License-Identifier: Apache-2.0
"""Attention of sequences that are divided among the processes of a torch.distributed group.

    out = diffattn.parallel.attention(q1, q2, k1, k2, v, lam, causal=True)     # on every rank

Every rank has some rows of the sequences: it passes its rows of q, k and v, and gets its rows of the result. Gradients
of q, k and v are those of the whole sequences. Gradients of lam and norm_weight are this rank's share; sum them over
the ranks, as in data-parallel training.

Two layouts say which rows a rank has:

* "consecutive": a range, in the order of the ranks and with any number of rows.
* "zigzag": a range from the beginning and one from the end (`rows`). Under a causal mask all ranks then have the same
  work with the method "keys".

Two methods:

* "heads" (Ulysses): the ranks exchange rows for heads, so that each computes some heads of whole sequences. The number
  of ranks must divide the numbers of heads. Both maps of a head stay on one rank.
* "keys": every rank receives all keys and values and computes its own rows. Any number of heads.
"""
from typing import Any, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from diffattn import ops

__all__ = ["attention", "rows"]

LAYOUTS = ("consecutive", "zigzag")
Range = Tuple[int, int]


def _ranges(tokens: int, rank: int, size: int, zigzag: bool) -> List[Range]:
    """Returns the ranges of a rank, as parallel::token_ranges of the C++ library does for `train`."""
    pieces = 2 * size if zigzag else size
    chosen = [rank, pieces - 1 - rank] if zigzag else [rank]
    return [(tokens * i // pieces, tokens * (i + 1) // pieces) for i in chosen]


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"diffattn: argument 'layout': expected 'consecutive' or 'zigzag', got {layout!r}")


def rows(tokens: int, layout: str = "consecutive", group: Optional[dist.ProcessGroup] = None) -> Tensor:
    """Returns the indices of this rank's rows when the ranks divide sequences of `tokens` rows evenly.

    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{scratch}/rows", rank=0, world_size=1)
    >>> diffattn.parallel.rows(4, layout="zigzag")
    tensor([0, 1, 2, 3])
    >>> torch.distributed.destroy_process_group()
    """
    _check_layout(layout)
    own = _ranges(tokens, dist.get_rank(group), dist.get_world_size(group), layout == "zigzag")
    return torch.cat([torch.arange(begin, end) for begin, end in own])


class _Ranks:
    """A group, and the rows of each of its ranks."""

    def __init__(self, count: int, device: torch.device, group: Optional[dist.ProcessGroup], layout: str) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        here = torch.tensor([count], device=device)
        parts = [torch.empty_like(here) for _ in range(self.size)]
        dist.all_gather(parts, here, group=group)
        self.counts: List[int] = [int(part) for part in parts]
        total = sum(self.counts)
        ends = [sum(self.counts[:rank + 1]) for rank in range(self.size)]
        self.ranges: List[List[Range]] = [[(end - rows, end)] for rows, end in zip(self.counts, ends)]
        if layout == "zigzag":
            self.ranges = [_ranges(total, rank, self.size, zigzag=True) for rank in range(self.size)]
            wanted = [sum(end - begin for begin, end in ranges) for ranges in self.ranges]
            if wanted != self.counts:
                raise ValueError(f"diffattn: argument 'layout': expected {wanted} rows on the ranks for 'zigzag' and "
                                 f"{total} rows in all, got {self.counts}; diffattn.parallel.rows returns them")

    def exchange(self, parts: List[Tensor], shapes: List[Tuple[int, ...]]) -> List[Tensor]:
        """Sends parts[i] to rank i and returns what comes from rank i, of shape shapes[i]."""
        sent = torch.cat([part.reshape(-1) for part in parts])
        counts = [int(torch.Size(shape).numel()) for shape in shapes]
        received = sent.new_empty(sum(counts))
        dist.all_to_all_single(received, sent, counts, [part.numel() for part in parts], group=self.group)
        return [piece.view(shape) for piece, shape in zip(received.split(counts), shapes)]

    def in_order(self, parts: List[Tensor]) -> Tensor:
        """Joins the rows of the ranks, [B, rows, H, D] each, in the order of the sequences."""
        pieces = []
        for part, ranges in zip(parts, self.ranges):
            split = part.split([end - begin for begin, end in ranges], dim=1)
            pieces += [(begin, piece) for (begin, _), piece in zip(ranges, split) if piece.shape[1] > 0]
        # At least one piece, so that empty sequences keep their shape.
        return torch.cat([piece for _, piece in sorted(pieces, key=lambda piece: piece[0])] or parts[:1], dim=1)

    def by_rank(self, x: Tensor) -> List[Tensor]:
        """The inverse of in_order."""
        return [torch.cat([x[:, begin:end] for begin, end in ranges], dim=1) for ranges in self.ranges]

    def to_heads(self, x: Tensor) -> Tensor:
        """[B, own rows, H, D] -> [B, all rows, H / size, D]."""
        heads = x.shape[2] // self.size
        shapes = [(x.shape[0], count, heads, x.shape[3]) for count in self.counts]
        return self.in_order(self.exchange(list(x.split(heads, dim=2)), shapes))

    def to_rows(self, x: Tensor) -> Tensor:
        """[B, all rows, H / size, D] -> [B, own rows, H, D]."""
        shape = (x.shape[0], self.counts[self.rank], *x.shape[2:])
        return torch.cat(self.exchange(self.by_rank(x), [shape] * self.size), dim=2)

    def gather(self, x: Tensor) -> Tensor:
        """[B, own rows, H, D] -> [B, all rows, H, D]."""
        shapes = [(x.shape[0], count, *x.shape[2:]) for count in self.counts]
        return self.in_order(self.exchange([x] * self.size, shapes))

    def scatter_sum(self, x: Tensor) -> Tensor:
        """[B, all rows, H, D] -> [B, own rows, H, D], summed over the ranks in a fixed order."""
        shape = (x.shape[0], self.counts[self.rank], *x.shape[2:])
        return torch.stack(self.exchange(self.by_rank(x), [shape] * self.size)).sum(0)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: _Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.to_heads(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.ranks.to_rows(grads[0]), None


class _ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: _Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.to_rows(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.ranks.to_heads(grads[0]), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: _Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gather(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.ranks.scatter_sum(grads[0]), None


def _by_heads(ranks: _Ranks, tensors: List[Tensor], lam: ops.Lambda, **options: Any) -> Tensor:
    if isinstance(lam, Tensor) and lam.dim() == 3:
        lam = _ToHeads.apply(lam.unsqueeze(-1), ranks).squeeze(-1)
    elif isinstance(lam, Tensor) and lam.dim() == 1:
        lam = lam.chunk(ranks.size)[ranks.rank]
    out = ops.attention(*[_ToHeads.apply(tensor, ranks) for tensor in tensors], lam, **options)
    return _ToRows.apply(out, ranks)


def _by_keys(ranks: _Ranks, tensors: List[Tensor], lam: ops.Lambda, causal: Optional[bool],
             window: Optional[ops.Window], key_starts: Optional[Tensor], key_lengths: Optional[Tensor],
             **options: Any) -> Tensor:
    if isinstance(window, (tuple, list)) and window[1] != 0 and not causal:
        raise ValueError("diffattn: argument 'window': expected one that ends at the row's own column for method "
                         f"'keys', got {window}; use method 'heads'")
    q1, q2, *keys = tensors
    keys = [_Gather.apply(tensor, ranks) for tensor in keys]
    if not causal and window is None:
        return ops.attention(q1, q2, *keys, lam, key_starts=key_starts, key_lengths=key_lengths, **options)
    # The operator aligns the last row with the last column, so we cut off later columns.
    outs, at = [], 0
    for begin, end in ranks.ranges[ranks.rank]:
        own = slice(at, at + end - begin)
        at = own.stop
        own_lam = lam[:, own] if isinstance(lam, Tensor) and lam.dim() == 3 else lam
        outs.append(ops.attention(
            q1[:, own], q2[:, own], *[tensor[:, :end] for tensor in keys], own_lam, causal=causal, window=window,
            key_starts=None if key_starts is None else key_starts.clamp(max=end),
            key_lengths=None if key_lengths is None else key_lengths.clamp(max=end), **options))
    return torch.cat(outs, dim=1)


def attention(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: ops.Lambda, *,
              causal: Optional[bool] = None, window: Optional[ops.Window] = None, key_starts: Optional[Tensor] = None,
              key_lengths: Optional[Tensor] = None, scale: Optional[float] = None, scale2: Optional[float] = None,
              norm_weight: Optional[Tensor] = None, norm_eps: Optional[float] = None, out_scale: float = 1.0,
              method: Optional[str] = None, layout: str = "consecutive",
              group: Optional[dist.ProcessGroup] = None) -> Tensor:
    """Computes `diffattn.attention` of whole sequences from this rank's rows of q, k and v.

    Every rank calls it with its rows: q1, q2 [B, M, H, D], k1, k2 [B, M, Hkv, D], v [B, M, Hkv, Dv], and lam of one
    number, [H] or [B, M, H]; M may differ between ranks. key_starts and key_lengths [B] count columns of the whole
    sequences. The other options are those of `diffattn.attention`. `method` is "heads", "keys" or None: by heads if
    their numbers allow it. With `layout` "zigzag", the rows are those of `diffattn.parallel.rows`.

    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{scratch}/meet", rank=0, world_size=1)
    >>> q1, q2, k1, k2 = torch.randn(4, 1, 5, 2, 8).unbind(0)
    >>> diffattn.parallel.attention(q1, q2, k1, k2, torch.randn(1, 5, 2, 16), 0.3, causal=True).shape
    torch.Size([1, 5, 2, 16])
    >>> torch.distributed.destroy_process_group()
    """
    _check_layout(layout)
    ranks = _Ranks(q1.shape[1], q1.device, group, layout)
    tensors = [q1, q2, k1, k2, v]
    divides = all(tensor.shape[2] % ranks.size == 0 for tensor in tensors)
    if method not in (None, "heads", "keys"):
        raise ValueError(f"diffattn: argument 'method': expected 'heads', 'keys' or None, got {method!r}")
    if method == "heads" and not divides:
        heads = sorted({tensor.shape[2] for tensor in tensors})
        raise ValueError(f"diffattn: argument 'method': expected 'keys', since {ranks.size} ranks do not divide "
                         f"{' and '.join(map(str, heads))} heads, got 'heads'")
    if any(tensor.shape[1] != q1.shape[1] for tensor in tensors):
        raise ValueError("diffattn: expected as many rows of k and v as of q on each rank, got "
                         f"{[tensor.shape[1] for tensor in tensors]}")
    compute = _by_keys if method == "keys" or not divides else _by_heads
    return compute(ranks, tensors, lam, causal=causal, window=window, key_starts=key_starts, key_lengths=key_lengths,
                   scale=scale, scale2=scale2, norm_weight=norm_weight, norm_eps=norm_eps, out_scale=out_scale)
