# SPDX-License-Identifier: Apache-2.0
"""Attention of sequences that are divided among the processes of a torch.distributed group.

    out = diffattn.parallel.attention(q1, q2, k1, k2, v, lam, causal=True)     # on every rank

Every rank has consecutive rows of the sequences, in the order of the ranks and any number of them: q, k and v are its
rows, and so is the result. Gradients of q, k and v are those of the whole sequences. Gradients of lam and norm_weight
are this rank's share; their sum over the ranks is the gradient, as in data-parallel training.

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

__all__ = ["attention"]


class _Ranks:
    """A group, and the number of rows of each of its ranks."""

    def __init__(self, rows: int, device: torch.device, group: Optional[dist.ProcessGroup]) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        here = torch.tensor([rows], device=device)
        parts = [torch.empty_like(here) for _ in range(self.size)]
        dist.all_gather(parts, here, group=group)
        self.rows: List[int] = [int(part) for part in parts]

    def exchange(self, parts: List[Tensor], shapes: List[Tuple[int, ...]]) -> List[Tensor]:
        """Sends parts[i] to rank i and returns what comes from rank i, of shape shapes[i]."""
        sent = torch.cat([part.reshape(-1) for part in parts])
        counts = [int(torch.Size(shape).numel()) for shape in shapes]
        received = sent.new_empty(sum(counts))
        dist.all_to_all_single(received, sent, counts, [part.numel() for part in parts], group=self.group)
        return [piece.view(shape) for piece, shape in zip(received.split(counts), shapes)]

    def to_heads(self, x: Tensor) -> Tensor:
        """[B, own rows, H, D] -> [B, all rows, H / size, D]."""
        heads = x.shape[2] // self.size
        shapes = [(x.shape[0], rows, heads, x.shape[3]) for rows in self.rows]
        return torch.cat(self.exchange(list(x.split(heads, dim=2)), shapes), dim=1)

    def to_rows(self, x: Tensor) -> Tensor:
        """[B, all rows, H / size, D] -> [B, own rows, H, D]."""
        shape = (x.shape[0], self.rows[self.rank], *x.shape[2:])
        return torch.cat(self.exchange(list(x.split(self.rows, dim=1)), [shape] * self.size), dim=2)

    def gather(self, x: Tensor) -> Tensor:
        """[B, own rows, H, D] -> [B, all rows, H, D]."""
        shapes = [(x.shape[0], rows, *x.shape[2:]) for rows in self.rows]
        return torch.cat(self.exchange([x] * self.size, shapes), dim=1)

    def scatter_sum(self, x: Tensor) -> Tensor:
        """[B, all rows, H, D] -> [B, own rows, H, D], summed over the ranks in a fixed order."""
        shape = (x.shape[0], self.rows[self.rank], *x.shape[2:])
        parts = self.exchange(list(x.split(self.rows, dim=1)), [shape] * self.size)
        return torch.stack(parts).sum(0)


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
             window: Optional[ops.Window], key_lengths: Optional[Tensor], **options: Any) -> Tensor:
    q1, q2, *keys = tensors
    keys = [_Gather.apply(tensor, ranks) for tensor in keys]
    if isinstance(window, (tuple, list)) and window[1] != 0 and not causal:
        raise ValueError("diffattn: argument 'window': expected one that ends at the row's own column for method "
                         f"'keys', got {window}; use method 'heads'")
    if causal or window is not None:
        # The operator aligns the last row with the last column, so later columns must be absent.
        end = sum(ranks.rows[:ranks.rank + 1])
        keys = [tensor[:, :end] for tensor in keys]
        key_lengths = None if key_lengths is None else key_lengths.clamp(max=end)
    return ops.attention(q1, q2, *keys, lam, causal=causal, window=window, key_lengths=key_lengths, **options)


def attention(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: ops.Lambda, *,
              causal: Optional[bool] = None, window: Optional[ops.Window] = None, key_starts: Optional[Tensor] = None,
              key_lengths: Optional[Tensor] = None, scale: Optional[float] = None, scale2: Optional[float] = None,
              norm_weight: Optional[Tensor] = None, norm_eps: Optional[float] = None, out_scale: float = 1.0,
              method: Optional[str] = None, group: Optional[dist.ProcessGroup] = None) -> Tensor:
    """Computes `diffattn.attention` of whole sequences from this rank's rows of q, k and v.

    Every rank calls it with its rows: q1, q2 [B, M, H, D], k1, k2 [B, M, Hkv, D], v [B, M, Hkv, Dv], and lam of one
    number, [H] or [B, M, H]; M may differ between ranks. key_starts and key_lengths [B] count columns of the whole
    sequences. The other options are those of `diffattn.attention`. `method` is "heads", "keys" or None: by heads if
    their numbers allow it.

    >>> torch.distributed.init_process_group("gloo", init_method=f"file://{scratch}/meet", rank=0, world_size=1)
    >>> q1, q2, k1, k2 = torch.randn(4, 1, 5, 2, 8).unbind(0)
    >>> diffattn.parallel.attention(q1, q2, k1, k2, torch.randn(1, 5, 2, 16), 0.3, causal=True).shape
    torch.Size([1, 5, 2, 16])
    >>> torch.distributed.destroy_process_group()
    """
    ranks = _Ranks(q1.shape[1], q1.device, group)
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
