# SPDX-License-Identifier: Apache-2.0
"""attention on DTensors, for data and tensor parallelism.

    q1, q2, k1, k2, v = (distribute_tensor(t, mesh, [Shard(2)]) for t in tensors)     # each rank has some heads
    out = diffattn.attention(q1, q2, k1, k2, v, lam, causal=True)                     # a DTensor, Shard(2)

`diffattn.attention` calls this module when q1 is a DTensor. Heads and sequences of a batch do not depend on each other,
so every rank computes its own and nothing is sent; gradients of replicated tensors are summed over the ranks.
"""
from typing import Any, Callable, Dict, List, Optional, Sequence

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

_BATCH, _HEADS = 0, 2  # axes of q1


def attention_of_shards(call: Callable[..., Tensor], q1: DTensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor,
                        lam: Any, options: Dict[str, Any]) -> DTensor:
    """Calls `call`, which computes attention, on the parts of each rank. Returns a DTensor placed as q1 is.

    q1, q2, k1, k2 and v must be placed alike: replicated, or sharded over the batch or the heads. Other tensors may
    be DTensors or, if all ranks have the same, ordinary ones.
    """
    for name, tensor in dict(q2=q2, k1=k1, k2=k2, v=v).items():
        alike = isinstance(tensor, DTensor) and tensor.placements == q1.placements
        if not alike or tensor.device_mesh != q1.device_mesh:
            found = f"a DTensor placed {tensor.placements}" if isinstance(tensor, DTensor) else "an ordinary tensor"
            raise TypeError(f"diffattn: argument '{name}': expected a DTensor placed as q1 is, {q1.placements}, got "
                            f"{found}")
    _check(q1, k1, options)
    place = _Places(q1)
    heads = q1.shape[_HEADS]
    local = [place.local(tensor, _BATCH, _HEADS) for tensor in (q1, q2, k1, k2, v)]
    if isinstance(lam, Tensor):
        whole = lam.dim() == 3
        lam = place.local(lam, _BATCH if whole else None, lam.dim() - 1 if lam.dim() and lam.numel() > 1 else None)
    options = dict(options)
    for name in ("key_starts", "key_lengths"):
        options[name] = place.local(options[name], _BATCH, None)
    options["norm_weight"] = place.local(options["norm_weight"], None, None)
    mask = options["mask"]
    if mask is not None:
        options["mask"] = place.local(mask, 0 if mask.dim() == 4 and mask.shape[0] > 1 else None,
                                      mask.dim() - 3 if mask.dim() >= 3 and mask.shape[-3] == heads > 1 else None)
    out = call(*local, lam, **options)
    return DTensor.from_local(out, q1.device_mesh, q1.placements, run_check=False)


def _check(q1: DTensor, k1: Tensor, options: Dict[str, Any]) -> None:
    if options["cu_seqlens_q"] is not None or options["cu_seqlens_k"] is not None:
        raise TypeError("diffattn: argument 'cu_seqlens_q': expected None for DTensors, got packed sequences; pass "
                        "the local tensors")
    for size, placement in zip(q1.device_mesh.shape, q1.placements):
        if not (placement.is_replicate() or placement.is_shard(_BATCH) or placement.is_shard(_HEADS)):
            raise TypeError("diffattn: argument 'q1': expected a DTensor that is replicated, Shard(0) (the batch) or "
                            f"Shard(2) (the heads), got {placement}; call redistribute first")
        axis = _BATCH if placement.is_shard(_BATCH) else _HEADS
        for name, tensor in (("q1", q1), ("k1", k1)):
            if placement.is_shard() and tensor.shape[axis] % size:
                raise ValueError(f"diffattn: argument '{name}': expected an axis {axis} that divides into {size} "
                                 f"shards, got {tensor.shape[axis]}")


class _Places:
    """Finds each rank's part of the tensors that go with q1."""

    def __init__(self, q1: DTensor):
        self._mesh, self._placements = q1.device_mesh, q1.placements

    def local(self, tensor: Optional[Tensor], batch: Optional[int], heads: Optional[int]) -> Optional[Tensor]:
        """Returns this rank's part of a tensor whose axes `batch` and `heads` are q1's. None: it has no such axis."""
        if tensor is None:
            return None
        wanted: List[Placement] = []
        gradients: List[Placement] = []
        for placement in self._placements:
            axis = None
            if placement.is_shard():
                axis = batch if placement.is_shard(_BATCH) else heads
            wanted.append(Replicate() if axis is None else Shard(axis))
            gradients.append(Partial() if placement.is_shard() and axis is None else wanted[-1])
        return self._part(tensor, wanted, gradients)

    def _part(self, tensor: Tensor, wanted: Sequence[Placement], gradients: Sequence[Placement]) -> Tensor:
        if not isinstance(tensor, DTensor):
            tensor = DTensor.from_local(tensor, self._mesh, [Replicate()] * self._mesh.ndim, run_check=False)
        return tensor.redistribute(placements=wanted).to_local(grad_placements=gradients)
