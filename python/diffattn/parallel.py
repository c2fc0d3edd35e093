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
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

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


def _on_rows(tensors: Sequence[Tensor], lam: ops.Lambda, cu_seqlens_q: Optional[Tensor],
             cu_seqlens_k: Optional[Tensor], **options: Any) -> Tensor:
    """Computes attention of this rank's rows. Packed documents are a batch of one row, here and in the result."""
    if cu_seqlens_q is None:
        return ops.attention(*tensors, lam, **options)
    lam = lam[0] if isinstance(lam, Tensor) and lam.dim() == 3 else lam
    out = ops.attention(*[tensor[0] for tensor in tensors], lam, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                        **options)
    return out.unsqueeze(0)


def _by_heads(ranks: _Ranks, tensors: List[Tensor], lam: ops.Lambda, cu_seqlens: Optional[Tensor],
              **options: Any) -> Tensor:
    if isinstance(lam, Tensor) and lam.dim() == 3:
        lam = _ToHeads.apply(lam.unsqueeze(-1), ranks).squeeze(-1)
    elif isinstance(lam, Tensor) and lam.dim() == 1 and lam.numel() > 1:
        lam = lam.chunk(ranks.size)[ranks.rank]
    whole = [_ToHeads.apply(tensor, ranks) for tensor in tensors]
    out = _on_rows(whole, lam, cu_seqlens, cu_seqlens, **options)
    return _ToRows.apply(out, ranks)


class _Piece(NamedTuple):
    """Rows of one document, and the columns that they may see."""
    rows: Range
    columns: Range

    @property
    def beyond(self) -> int:
        """The number of columns behind the last row's own."""
        return self.columns[1] - self.rows[1]


def _pieces(own: Range, documents: Sequence[int], right: int) -> List[_Piece]:
    """Divides a range of rows at the ends of documents. A row sees `right` columns behind its own; -1 is no bound."""
    found = []
    for first, last in zip(documents, documents[1:]):
        begin, end = max(own[0], first), min(own[1], last)
        if begin < end:
            found.append(_Piece((begin, end), (first, last if right < 0 else min(last, end + right))))
    # A rank without rows also takes part in the exchange of gradients.
    return found or [_Piece((own[0], own[0]), (own[0], own[0]))]


def _sides(causal: Optional[bool], window: Optional[ops.Window]) -> Tuple[int, int]:
    """Returns the numbers of columns that a row sees to its left and right; -1 is no bound."""
    bounds = ops.bounds_of(causal, window)
    left, right = bounds.get("window_left", -1), bounds.get("window_right", -1)
    if "window" in bounds:
        left, right = bounds["window"] - 1, 0
    return left, 0 if bounds["causal"] else right


def _offsets(ranges: Sequence[Range], device: torch.device) -> Tensor:
    """Returns the offsets of ranges that lie one behind the other."""
    lengths = torch.tensor([0, *(end - begin for begin, end in ranges)])
    return lengths.cumsum(0).to(device, torch.int32)


def _by_keys(ranks: _Ranks, tensors: List[Tensor], lam: ops.Lambda, cu_seqlens: Optional[Tensor],
             causal: Optional[bool], window: Optional[ops.Window], key_starts: Optional[Tensor],
             key_lengths: Optional[Tensor], **options: Any) -> Tensor:
    q1, q2, *keys = tensors
    keys = [_Gather.apply(tensor, ranks) for tensor in keys]
    documents = [0, sum(ranks.counts)] if cu_seqlens is None else cu_seqlens.tolist()
    left, right = _sides(causal, window)
    bounded = left >= 0 or right >= 0
    calls: List[List[_Piece]] = []  # what one call of the operator computes
    for own in ranks.ranges[ranks.rank]:
        for piece in _pieces(own, documents, right):
            fits = calls and (not bounded or cu_seqlens is not None and calls[-1][0].beyond == piece.beyond)
            if fits:
                calls[-1].append(piece)
            else:
                calls.append([piece])
    outs, at = [], 0
    for pieces in calls:
        rows = slice(at, at + sum(piece.rows[1] - piece.rows[0] for piece in pieces))
        at = rows.stop
        seen = dict(options, causal=causal, window=window, cu_seqlens_q=None, cu_seqlens_k=None)
        if cu_seqlens is None:
            stop = pieces[-1].columns[1]
            mine = [tensor[:, :stop] for tensor in keys]
            seen.update(key_starts=None if key_starts is None else key_starts.clamp(max=stop),
                        key_lengths=None if key_lengths is None else key_lengths.clamp(max=stop))
        else:
            columns = torch.cat([torch.arange(*piece.columns) for piece in pieces]).to(q1.device)
            mine = [tensor.index_select(1, columns) for tensor in keys]
            seen.update(cu_seqlens_q=_offsets([piece.rows for piece in pieces], q1.device),
                        cu_seqlens_k=_offsets([piece.columns for piece in pieces], q1.device))
        beyond = pieces[0].beyond
        if bounded and beyond > 0:
            # The operator aligns the last row with the last column, which lies `beyond` columns behind the row's own.
            seen["window"] = (left + beyond if left >= 0 else -1, right - beyond if right >= 0 else -1)
        own_lam = lam[:, rows] if isinstance(lam, Tensor) and lam.dim() == 3 else lam
        outs.append(_on_rows([q1[:, rows], q2[:, rows], *mine], own_lam, **seen))
    return torch.cat(outs, dim=1)


def _check_documents(total: int, cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor]) -> None:
    if cu_seqlens_q is None or cu_seqlens_k is None or not torch.equal(cu_seqlens_q, cu_seqlens_k):
        raise ValueError("diffattn: argument 'cu_seqlens_k': expected the same offsets as cu_seqlens_q, since each "
                         f"rank has the same rows of q, k and v, got {cu_seqlens_q} and {cu_seqlens_k}")
    offsets = cu_seqlens_q.tolist()
    if offsets[:1] != [0] or offsets[-1] != total or sorted(offsets) != offsets:
        raise ValueError("diffattn: argument 'cu_seqlens_q': expected the offsets of the documents of all ranks, from "
                         f"0 to {total}, got {offsets}")


def attention(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: ops.Lambda, *,
              causal: Optional[bool] = None, window: Optional[ops.Window] = None, key_starts: Optional[Tensor] = None,
              key_lengths: Optional[Tensor] = None, cu_seqlens_q: Optional[Tensor] = None,
              cu_seqlens_k: Optional[Tensor] = None, scale: Optional[float] = None, scale2: Optional[float] = None,
              norm_weight: Optional[Tensor] = None, norm_eps: Optional[float] = None, out_scale: float = 1.0,
              method: Optional[str] = None, layout: str = "consecutive",
              group: Optional[dist.ProcessGroup] = None) -> Tensor:
    """Computes `diffattn.attention` of whole sequences from this rank's rows of q, k and v.

    Every rank calls it with its rows: q1, q2 [B, M, H, D], k1, k2 [B, M, Hkv, D], v [B, M, Hkv, Dv], and lam of one
    number, [H] or [B, M, H]; M may differ between ranks. key_starts and key_lengths [B] count columns of the whole
    sequences. Packed documents are q1, q2 [M, H, D] and so on, with lam of one number, [H] or [M, H]; both cu_seqlens
    are the offsets of the documents among the rows of all ranks. The other options are those of `diffattn.attention`.
    `method` is "heads", "keys" or None: by heads if their numbers allow it. With `layout` "zigzag", the rows are those
    of `diffattn.parallel.rows`.

    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{scratch}/meet", rank=0, world_size=1)
    >>> q1, q2, k1, k2 = torch.randn(4, 1, 5, 2, 8).unbind(0)
    >>> diffattn.parallel.attention(q1, q2, k1, k2, torch.randn(1, 5, 2, 16), 0.3, causal=True).shape
    torch.Size([1, 5, 2, 16])
    >>> torch.distributed.destroy_process_group()
    """
    _check_layout(layout)
    tensors = [q1, q2, k1, k2, v]
    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    if packed:  # a batch of one row
        tensors = [tensor.unsqueeze(0) for tensor in tensors]
        lam = lam.unsqueeze(0) if isinstance(lam, Tensor) and lam.dim() == 2 else lam
    ranks = _Ranks(tensors[0].shape[1], q1.device, group, layout)
    if packed:
        _check_documents(sum(ranks.counts), cu_seqlens_q, cu_seqlens_k)
        if key_starts is not None or key_lengths is not None:
            raise ValueError("diffattn: argument 'cu_seqlens_q': expected neither key_starts nor key_lengths beside it")
    divides = all(tensor.shape[2] % ranks.size == 0 for tensor in tensors)
    if method not in (None, "heads", "keys"):
        raise ValueError(f"diffattn: argument 'method': expected 'heads', 'keys' or None, got {method!r}")
    if method == "heads" and not divides:
        heads = sorted({tensor.shape[2] for tensor in tensors})
        raise ValueError(f"diffattn: argument 'method': expected 'keys', since {ranks.size} ranks do not divide "
                         f"{' and '.join(map(str, heads))} heads, got 'heads'")
    if any(tensor.shape[1] != tensors[0].shape[1] for tensor in tensors):
        raise ValueError("diffattn: expected as many rows of k and v as of q on each rank, got "
                         f"{[tensor.shape[1] for tensor in tensors]}")
    compute = _by_keys if method == "keys" or not divides else _by_heads
    out = compute(ranks, tensors, lam, cu_seqlens_q, causal=causal, window=window, key_starts=key_starts,
                  key_lengths=key_lengths, scale=scale, scale2=scale2, norm_weight=norm_weight, norm_eps=norm_eps,
                  out_scale=out_scale)
    return out[0] if packed else out
