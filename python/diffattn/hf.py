# SPDX-License-Identifier: Apache-2.0
"""Runs Hugging Face's DiffLlama on the fused operator. The change is in place and can be undone.

    model = AutoModelForCausalLM.from_pretrained(folder)
    diffattn.hf.accelerate(model)       # same weights, same numbers, faster
    diffattn.hf.restore(model)

The attention modules stay the same objects with the same parameters, names and hooks; only their forward
method changes. Saving, loading, `generate`, `Trainer`, gradient checkpointing and torch.compile work as before.
"""
from typing import Any, Dict, List, Optional, Tuple, TypeVar

import torch
from torch import Tensor, nn

from diffattn.ops import attention, decode

try:
    import transformers
    from transformers.cache_utils import Cache, DynamicCache
    from transformers.models.diffllama.modeling_diffllama import (DiffLlamaAttention,
                                                                  DiffLlamaModel,
                                                                  apply_rotary_pos_emb)
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 17):
        raise ImportError(f"this is {transformers.__version__}")
except ImportError as error:
    raise ImportError("diffattn.hf needs transformers 5.17 or later: "
                      f"pip install 'transformers>=5.17' ({error}).") from error

Model = TypeVar("Model", bound=nn.Module)

_HOOK, _FORMER = "_diffattn_hook", "_diffattn_former_implementation"
_FLOAT8 = {getattr(torch, name) for name in dir(torch) if name.startswith("float8_")}


class FusedDiffLlamaAttention(DiffLlamaAttention):
    """DiffLlama's attention that computes both maps, their difference and the head norm in one operator."""

    def forward(self, hidden_states: Tensor, position_embeddings: Tuple[Tensor, Tensor],
                attention_mask: Optional[Tensor] = None, past_key_values: Optional[Cache] = None,
                diffattn_padding: "Optional[_Padding]" = None,
                **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
        implementation = self.config._attn_implementation
        padded = diffattn_padding is not None and diffattn_padding.mask is not None
        if implementation == "eager" and padded:
            diffattn_padding = None  # the eager mask lets a row of padding see all columns equally
        if implementation == "eager" and kwargs.get("output_attentions",
                                                    self.config.output_attentions):
            return super().forward(hidden_states, position_embeddings, attention_mask,
                                   past_key_values, **kwargs)
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_proj(hidden_states).view(heads)  # [B, M, H, D]
        k = self.k_proj(hidden_states).view(heads)
        v = self.v_proj(hidden_states).view(heads)
        cos, sin = position_embeddings
        q, k = _rotate(q, k, cos, sin)
        if past_key_values is not None:  # the cache has shape [B, Hkv, N, D]
            k, v = past_key_values.update(k.transpose(1, 2), v.transpose(1, 2), self.layer_idx)
            k, v = k.transpose(1, 2), v.transpose(1, 2)

        rows, columns = q.shape[1], k.shape[1]
        visible = _visible(columns, attention_mask, diffattn_padding)
        if attention_mask is None:
            visible["causal"] = kwargs.get("is_causal", self.is_causal) is not False
            if visible["causal"] and implementation == "sdpa" and columns > rows > 1:
                # This is the prefill of a static cache: columns after the prompt are still empty.
                k, v = k[:, :rows], v[:, :rows]

        # Heads i and i + H/2 give the two maps of head i; values i and i + Hkv/2 are its two halves.
        q1, q2 = q.chunk(2, dim=2)
        k1, k2 = k.chunk(2, dim=2)
        v = torch.cat(v.chunk(2, dim=2), dim=-1)
        call = attention
        if rows == 1 and not torch.is_grad_enabled():
            call = decode
            del visible["causal"]
        out = call(q1, q2, k1, k2, v, self._lambda(q.dtype), scale=self.scaling,
                   norm_weight=self.groupnorm.weight, norm_eps=self.groupnorm.eps,
                   out_scale=1 - self.lambda_init, **visible)
        return self.o_proj(out.flatten(-2)), None

    def _lambda(self, dtype: torch.dtype) -> Tensor:
        """Returns lambda, a scalar, rounded as in transformers."""
        first = torch.exp((self.lambda_q1 * self.lambda_k1).sum(dtype=torch.float32)).to(dtype)
        second = torch.exp((self.lambda_q2 * self.lambda_k2).sum(dtype=torch.float32)).to(dtype)
        return first - second + self.lambda_init


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tuple[Tensor, Tensor]:
    """Applies the rotary embedding to heads [B, N, H, D].

    For float32 on a CPU it uses an operator that makes one pass over each tensor. torch.compile fuses the
    version of transformers by itself.
    """
    eager = not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
    plain = type(q) is Tensor and type(k) is Tensor and cos.shape[0] in (1, q.shape[0])
    if not (eager and plain and q.device.type == "cpu" and q.dtype == cos.dtype == torch.float32):
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
    half = cos.shape[-1] // 2  # the second half repeats the first
    cos, sin = cos[..., :half].contiguous(), sin[..., :half].contiguous()
    if cos.shape[0] == 1:
        cos, sin = cos[0], sin[0]
    return torch.ops.diffattn.rotate(q, cos, sin), torch.ops.diffattn.rotate(k, cos, sin)


def accelerate(model: Model) -> Model:
    """Makes every DiffLlama attention layer of `model` use the fused operator. Returns `model`.

    Works on every DiffLlama class (with any head), also inside a wrapper module. A second call changes
    nothing. Raises TypeError if the model has no DiffLlama attention, and ValueError if it cannot be
    accelerated in its current state; the message says what to do.
    """
    layers = _attention_layers(model) if isinstance(model, nn.Module) else []
    if not layers:
        raise TypeError("diffattn.hf.accelerate: expected a transformers DiffLlama model, got "
                        f"{type(model).__name__}, which has no DiffLlamaAttention; `diffattn convert` "
                        "converts a Llama model to a DiffLlama.")
    done = [type(layer) is FusedDiffLlamaAttention for layer in layers]
    if all(done):
        return model
    if any(done):
        raise ValueError(f"diffattn.hf.accelerate: {sum(done)} of {len(done)} attention layers are "
                         "already accelerated; call diffattn.hf.restore(model), then "
                         "diffattn.hf.accelerate(model).")
    for layer in layers:
        _check(layer)
    for layer in layers:
        layer.__class__ = FusedDiffLlamaAttention
    for decoder in _decoders(model):
        implementation = decoder.config._attn_implementation
        if implementation not in ("sdpa", "eager"):  # only these two pass complete masks
            setattr(decoder, _FORMER, implementation)
            decoder.config._attn_implementation = "sdpa"
        setattr(decoder, _HOOK, decoder.register_forward_pre_hook(_pass_padding, with_kwargs=True))
    return model


def restore(model: Model) -> Model:
    """Undoes `accelerate` and returns `model`. Does nothing if the model is not accelerated."""
    for layer in _attention_layers(model):
        if type(layer) is FusedDiffLlamaAttention:
            layer.__class__ = DiffLlamaAttention
    for decoder in _decoders(model):
        if hasattr(decoder, _HOOK):
            getattr(decoder, _HOOK).remove()
            delattr(decoder, _HOOK)
        if hasattr(decoder, _FORMER):
            decoder.config._attn_implementation = getattr(decoder, _FORMER)
            delattr(decoder, _FORMER)
    return model


def _attention_layers(model: nn.Module) -> List[DiffLlamaAttention]:
    return [module for module in model.modules() if isinstance(module, DiffLlamaAttention)]


def _decoders(model: nn.Module) -> List[DiffLlamaModel]:
    return [module for module in model.modules() if isinstance(module, DiffLlamaModel)]


def _check(layer: DiffLlamaAttention) -> None:
    where = f"diffattn.hf.accelerate: attention layer {layer.layer_idx}"
    if type(layer) is not DiffLlamaAttention:
        raise ValueError(f"{where} is a {type(layer).__name__}, whose forward may differ from "
                         "DiffLlamaAttention's; call accelerate before you replace the layer.")
    dropout = max(layer.attention_dropout, layer.config.attention_dropout)
    if dropout > 0:
        raise ValueError(f"{where} has attention_dropout = {dropout}, which differential attention "
                         "does not define; set it to 0 in the config and in the layers.")
    for name, parameter in layer.named_parameters():
        if parameter.dtype in _FLOAT8:
            raise ValueError(f"{where} has {name} in {parameter.dtype}, which the operator does "
                             "not support; load the model in bfloat16 (dtype=torch.bfloat16).")


class _Padding:
    """The padded columns of a batch with a causal mask."""

    def __init__(self, mask: Optional[Tensor]):
        self.mask = mask  # [B, N], zero for padded columns; None without padding
        self._bounds: Optional[Tuple[Tensor, Tensor]] = None
        self._looked = False

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


def _visible(columns: int, mask: Optional[Tensor], padding: Optional[_Padding]) -> Dict[str, Any]:
    """Returns the mask as options of the operator.

    `mask` comes from transformers: None for a causal mask without padding, else [B, 1, M, N] including the
    causal part. `padding` comes from the hook `_pass_padding`.
    """
    if mask is None:
        return {"causal": True}
    if not isinstance(mask, Tensor):
        raise ValueError(f"diffattn.hf: expected the attention mask as a tensor, got {type(mask)}; "
                         "call model.set_attn_implementation('sdpa').")
    if mask.dim() == 2:
        padding = _Padding(mask)
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


def _pass_padding(decoder: DiffLlamaModel, args: Tuple[Any, ...],
                  kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Passes the padded columns to the layers if the mask is otherwise causal.

    Under torch.compile, transformers cannot read values of the mask, so it always builds [B, 1, M, N]. The
    padded columns alone are enough, and a causal mask without padding needs no tensor at all.
    """
    names = ("input_ids", "attention_mask", "position_ids", "past_key_values")
    given = {**dict(zip(names, args)), **kwargs}
    mask, cache = given.get("attention_mask"), given.get("past_key_values")
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
        return args, kwargs
    if cache is not None and type(cache) is not DynamicCache:
        return args, kwargs  # other caches have columns that are not filled yet
    if not getattr(decoder.config, "is_causal", True):
        return args, kwargs
    if mask is None and cache is None and given.get("position_ids") is not None:
        return args, kwargs  # may be packed sequences, which only position_ids distinguish
    return args, {**kwargs, "diffattn_padding": _Padding(mask)}
