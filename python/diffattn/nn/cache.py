# SPDX-License-Identifier: Apache-2.0
"""Keys and values that a layer has read, for generation and cross-attention."""
from typing import Optional, Tuple

from torch import Tensor

from diffattn._rows import Rows

__all__ = ["KvCache"]


class KvCache:
    """The keys and values of the tokens that a layer has read. Each layer needs one of its own.

    >>> layer, cache = diffattn.nn.preset("microsoft_v1", 32, 4), diffattn.nn.KvCache()
    >>> x = torch.randn(1, 6, 32)
    >>> with torch.no_grad():
    ...     steps = [layer(x[:, :4], cache=cache), layer(x[:, 4:5], cache=cache), layer(x[:, 5:], cache=cache)]
    >>> torch.allclose(torch.cat(steps, dim=1), layer(x), atol=1e-5)
    True
    """

    def __init__(self) -> None:
        self._keys: Optional[Rows] = None
        self._values: Optional[Rows] = None
        self.crossed = False  # holds a context

    def __len__(self) -> int:
        """Returns the number of tokens."""
        return 0 if self._keys is None else self._keys.count

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Adds keys [B, M, heads, D] and values [B, M, Hkv, Dv].

        >>> cache = diffattn.nn.KvCache()
        >>> cache.append(torch.randn(2, 5, 4, 8), torch.randn(2, 5, 2, 16))
        >>> len(cache)
        5
        """
        if self._keys is None or self._values is None:
            self._keys, self._values = Rows(keys), Rows(values)
            return
        if keys.shape[0] != self._keys.room.shape[0]:
            raise ValueError(f"diffattn: argument 'cache': expected one of batch {keys.shape[0]}, got one of batch "
                             f"{self._keys.room.shape[0]}")
        self._keys.append(keys)
        self._values.append(values)

    def contents(self) -> Tuple[Tensor, Tensor]:
        """Returns all keys and values. Raises ValueError if there are none.

        >>> keys, values = cache.contents()
        >>> values.shape
        torch.Size([2, 5, 2, 16])
        """
        if self._keys is None or self._values is None:
            raise ValueError("diffattn: argument 'cache': expected one that holds tokens, got an empty one")
        return self._keys.all(), self._values.all()

    def select_rows(self, rows: Tensor) -> None:
        """Replaces sequence b by the old sequence rows[b], for beam search.

        >>> cache.select_rows(torch.tensor([1, 1, 0]))
        >>> cache.contents()[0].shape
        torch.Size([3, 5, 4, 8])
        """
        keys, values = self.contents()
        self._keys, self._values = Rows(keys.index_select(0, rows)), Rows(values.index_select(0, rows))
