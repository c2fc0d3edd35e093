# SPDX-License-Identifier: Apache-2.0
"""A layer of transformers' DynamicCache that generation reads where it is.

DynamicCache copies all keys and values for every new token, and the fused operator wants the two halves of a value
beside each other, which would be one more copy. This layer appends in place and keeps the halves together.
"""
from typing import Optional, Tuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from diffattn._rows import Rows


class JoinedLayer(DynamicLayer):
    """Holds keys [B, N, Hkv, D], and values as [B, N, Hkv / 2, 2 D].

    To everybody else it is a DynamicLayer: `keys` and `values` are [B, Hkv, N, D] and may be set. Reading `values`
    makes a copy.
    """

    def __init__(self, former: Optional[DynamicLayer] = None):
        self._keys: Optional[Rows] = None
        self._joined: Optional[Rows] = None
        super().__init__()
        if former is not None and former.is_initialized and former.keys is not None:
            self.lazy_initialization(former.keys, former.values)
            self.keys, self.values = former.keys, former.values

    @property
    def keys(self) -> Optional[Tensor]:
        return None if self._keys is None else self._keys.all().transpose(1, 2)

    @keys.setter
    def keys(self, keys: Optional[Tensor]) -> None:
        self._keys = None if keys is None or keys.numel() == 0 else Rows(keys.transpose(1, 2))

    @property
    def values(self) -> Optional[Tensor]:
        if self._joined is None:
            return None
        return torch.cat(self._joined.all().chunk(2, dim=-1), dim=2).transpose(1, 2)

    @values.setter
    def values(self, values: Optional[Tensor]) -> None:
        self._joined = None if values is None or values.numel() == 0 else Rows(join(values.transpose(1, 2)))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return 0 if self._keys is None else self._keys.count

    def update(self, key_states: Tensor, value_states: Tensor, *args: object,
               **kwargs: object) -> Tuple[Tensor, Tensor]:
        """Does what DynamicLayer.update does. It copies, and has gradients."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.keys, self.values
        keys = key_states if keys is None else torch.cat([keys, key_states], dim=2)
        values = value_states if values is None else torch.cat([values, value_states], dim=2)
        self.keys, self.values = keys, values
        return keys, values

    def append(self, keys: Tensor, values: Tensor) -> Tuple[Tensor, Tensor]:
        """Adds keys and values [B, M, Hkv, D] in place. Returns all keys, and all values as [B, N, Hkv / 2, 2 D]."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        joined = join(values)
        if self._keys is None or self._joined is None:
            self._keys, self._joined = Rows(keys), Rows(joined)
            return keys, joined
        return self._keys.append(keys), self._joined.append(joined)

    def room_for_token(self) -> Optional[Tuple[Tensor, Tensor, int]]:
        """Returns keys and values with room for one more row, and the number of filled rows; None if it is empty."""
        if self._keys is None or self._joined is None:
            return None
        return self._keys.reserve(1), self._joined.reserve(1), self._keys.count

    def add_token(self) -> None:
        """Counts a row that was written into the room."""
        assert self._keys is not None and self._joined is not None
        self._keys.count += 1
        self._joined.count += 1

    def reset(self) -> None:
        self.keys = self.values = None
        self.is_initialized = False


def join(values: Tensor) -> Tensor:
    """Puts the halves of each value side by side: heads i and i + Hkv / 2 of [B, N, Hkv, D]."""
    return torch.cat(values.chunk(2, dim=2), dim=-1)


def joined_layer(cache: Cache, index: int) -> Optional[JoinedLayer]:
    """Returns layer `index` of a plain DynamicCache as a JoinedLayer, which it becomes; None for other caches."""
    if type(cache) is not DynamicCache or cache.offloading:
        return None
    while len(cache.layers) <= index:
        cache.layers.append(JoinedLayer())
    layer = cache.layers[index]
    if type(layer) is DynamicLayer:
        layer = cache.layers[index] = JoinedLayer(layer)
    return layer if type(layer) is JoinedLayer else None
