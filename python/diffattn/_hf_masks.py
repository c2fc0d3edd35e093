# SPDX-License-Identifier: Apache-2.0
"""Masks of transformers as options of the operator."""
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import causal_mask_function, sdpa_mask


class Padding:
    """The padded columns of a batch with a causal mask."""

    def __init__(self, mask: Optional[Tensor]):
        self.mask = mask  # [B, N], zero for padded columns; None without padding
        self._bounds: Optional[Tuple[Tensor, Tensor]] = None
        self._looked = False
        self._to_the_end: Optional[bool] = None

    def bounds(self) -> Optional[Tuple[Tensor, Tensor]]:
        """Returns key_starts and key_lengths, or None if the padding has holes.

        Reads the values of the mask (on a GPU, this synchronises), once for all layers.
        """
        if not self._looked and self.mask is not None:
            kept = self.mask.bool()
            starts = kept.int().argmax(-1)
            ends = starts + kept.sum(-1)
            place = torch.arange(kept.shape[-1], device=kept.device)
            between = (place >= starts[:, None]) & (place < ends[:, None])
            self._bounds = (starts, ends) if torch.equal(between, kept) else None
        self._looked = True
        return self._bounds

    def to_the_end(self) -> bool:
        """True if no row is padded on the right. Reads the values once, too."""
        if self._to_the_end is None:
            bounds = self.bounds()
            self._to_the_end = self.mask is None or (bounds is not None
                                                     and bool((bounds[1] == self.mask.shape[-1]).all()))
        return self._to_the_end


def make_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0,
              mask_function: Callable[..., Any] = causal_mask_function, attention_mask: Optional[Tensor] = None,
              allow_is_causal_skip: bool = True, **kwargs: Any) -> Optional[Tensor]:
    """Makes masks for `attn_implementation="diffattn"`.

    A causal mask over a filled cache needs only the padding [B, N], or nothing; others are [B, 1, M, N].
    """
    plain = mask_function is causal_mask_function and allow_is_causal_skip and isinstance(q_offset, int)
    if plain and kv_offset == 0 and kv_length == q_offset + q_length:
        if attention_mask is None or attention_mask.shape[-1] == kv_length:
            return attention_mask
    return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
                     kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
                     allow_is_causal_skip=allow_is_causal_skip, **kwargs)


def visible(columns: int, mask: Optional[Tensor], padding: Optional[Padding]) -> Dict[str, Any]:
    """Returns the mask as options of the operator.

    `mask` comes from transformers: None for a causal mask without padding, the padding [B, N], or [B, 1, M, N]
    including the causal part. `padding` comes from `padding_of`.
    """
    if mask is None:
        return {"causal": True}
    if not isinstance(mask, Tensor):
        raise ValueError(f"diffattn.hf: expected the attention mask as a tensor, got {type(mask)}; "
                         "call model.set_attn_implementation('sdpa').")
    if padding is None and mask.dim() == 2:
        padding = Padding(mask)
    if padding is None:
        return {"causal": False, "mask": mask}
    if padding.mask is None:
        return {"causal": True}
    if padding.mask.shape[-1] != columns:
        return {"causal": False, "mask": mask}
    bounds = None if torch.compiler.is_compiling() else padding.bounds()
    if bounds is not None:
        return {"causal": True, "key_starts": bounds[0], "key_lengths": bounds[1]}
    return {"causal": True, "mask": padding.mask[:, None, None, :].bool()}


def padding_of(config: Any, given: Dict[str, Any]) -> Optional[Padding]:
    """Returns the padded columns if the mask of a call of DiffLlamaModel is otherwise causal, else None.

    Under torch.compile, transformers cannot read values of the mask, so it always builds [B, 1, M, N]. The
    padded columns alone are enough, and a causal mask without padding needs no tensor at all.
    """
    mask, cache = given.get("attention_mask"), given.get("past_key_values")
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
        return None
    if cache is not None and type(cache) is not DynamicCache:
        return None  # other caches have columns that are not filled yet
    if not getattr(config, "is_causal", True):
        return None
    if mask is None and cache is None and given.get("position_ids") is not None:
        return None  # may be packed sequences, which only position_ids distinguish
    return Padding(mask)


def eager_mask(given: Dict[str, Any], dtype: torch.dtype) -> Any:
    """Returns the mask that transformers' eager attention uses: a row of padding sees all columns equally."""
    mask, cache = given.get("attention_mask"), given.get("past_key_values")
    if not (isinstance(mask, Tensor) and mask.dim() == 2) or (cache is not None and type(cache) is not DynamicCache):
        return mask
    columns = mask.shape[-1]
    past = 0 if cache is None else cache.get_seq_length()
    causal = torch.ones(columns - past, columns, dtype=torch.bool, device=mask.device).tril(past)
    seen = causal & mask[:, None, None, :].bool()
    return torch.zeros(seen.shape, dtype=dtype, device=mask.device).masked_fill_(~seen, torch.finfo(dtype).min)
