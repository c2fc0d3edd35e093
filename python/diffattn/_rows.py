# SPDX-License-Identifier: Apache-2.0
"""A tensor that grows in place, for caches of keys and values."""
import torch
from torch import Tensor


class Rows:
    """A tensor [B, N, H, D] that grows along N, with room for more rows."""

    def __init__(self, rows: Tensor):
        self.room, self.count = rows, rows.shape[1]

    def reserve(self, count: int) -> Tensor:
        """Makes room for `count` more rows. Returns the room, whose first rows are filled."""
        needed = self.count + count
        frozen = self.room.is_inference() and not torch.is_inference_mode_enabled()
        if frozen or needed > self.room.shape[1]:
            batch, _, heads, width = self.room.shape
            room = self.room.new_empty(batch, needed + max(64, needed // 4), heads, width)
            room[:, :self.count] = self.all()
            self.room = room
        return self.room

    def append(self, new: Tensor) -> Tensor:
        """Adds rows [B, M, H, D] and returns all of them. Where gradients are recorded, it copies."""
        if torch.is_grad_enabled() and (new.requires_grad or self.room.requires_grad):
            self.room = torch.cat([self.all(), new], dim=1)
            self.count = self.room.shape[1]
            return self.room
        self.reserve(new.shape[1])[:, self.count:self.count + new.shape[1]] = new
        self.count += new.shape[1]
        return self.all()

    def all(self) -> Tensor:
        return self.room[:, :self.count]
