# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's DiffLlama on the fused operator, in place and undone at will.

    model = AutoModelForCausalLM.from_pretrained(folder)
    diffattn.hf.accelerate(model)       # same weights, same numbers, faster
    diffattn.hf.restore(model)

The attention modules stay the objects they are, with their parameters, names and hooks; only what
their forward computes changes. Saving, loading, `generate`, `Trainer`, gradient checkpointing and
torch.compile work as before.
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
    """DiffLlama's attention with both maps, their difference and the head norm in one operator."""

    def forward(self, hidden_states: Tensor, position_embeddings: Tuple[Tensor, Tensor],
                attention_mask: Optional[Tensor] = None, past_key_values: Optional[Cache] = None,
                diffattn_padding: "Optional[_Padding]" = None,
                **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
        implementation = self.config._attn_implementation
        padded = diffattn_padding is not None and diffattn_padding.mask is not None
        if implementation == "eager" and padded:
            diffattn_padding = None  # its mask lets a row of padding see everything evenly
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
        if past_key_values is not None:  # caches keep [B, Hkv, N, D]
            k, v = past_key_values.update(k.transpose(1, 2), v.transpose(1, 2), self.layer_idx)
            k, v = k.transpose(1, 2), v.transpose(1, 2)

        rows, columns = q.shape[1], k.shape[1]
        visible = _visible(columns, attention_mask, diffattn_padding)
        if attention_mask is None:
            visible["causal"] = kwargs.get("is_causal", self.is_causal) is not False
            if visible["causal"] and implementation == "sdpa" and columns > rows > 1:
                # Without a mask this is a prompt in a static cache, whose tail is still empty.
                k, v = k[:, :rows], v[:, :rows]

        # Heads i and i + H/2 are the two maps of head i; values i and i + Hkv/2 its two halves.
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
        """One number, rounded as transformers rounds it."""
        first = torch.exp((self.lambda_q1 * self.lambda_k1).sum(dtype=torch.float32)).to(dtype)
        second = torch.exp((self.lambda_q2 * self.lambda_k2).sum(dtype=torch.float32)).to(dtype)
        return first - second + self.lambda_init


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb of heads [B, N, H, D]; float32 on a CPU in one pass over memory each,
    which torch.compile does by itself."""
    eager = not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
    plain = type(q) is Tensor and type(k) is Tensor and cos.shape[0] in (1, q.shape[0])
    if not (eager and plain and q.device.type == "cpu" and q.dtype == cos.dtype == torch.float32):
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
    half = cos.shape[-1] // 2  # the other half says the same
    cos, sin = cos[..., :half].contiguous(), sin[..., :half].contiguous()
    if cos.shape[0] == 1:
        cos, sin = cos[0], sin[0]
    return torch.ops.diffattn.rotate(q, cos, sin), torch.ops.diffattn.rotate(k, cos, sin)


def accelerate(model: Model) -> Model:
    """Lets every DiffLlama attention of `model` compute with the fused operator; returns `model`.

    Works on a DiffLlama model of any head, also inside a wrapper. Calling it again changes nothing.
    TypeError: there is no DiffLlama attention in it. ValueError: it cannot be accelerated as it is;
    the message says what to do.
    """
    layers = _attention_layers(model) if isinstance(model, nn.Module) else []
    if not layers:
        raise TypeError("diffattn.hf.accelerate: expected a transformers DiffLlama model, got "
                        f"{type(model).__name__}, which has no DiffLlamaAttention; a Llama model "
                        "can be made into one with `diffattn convert`.")
    done = [type(layer) is FusedDiffLlamaAttention for layer in layers]
    if all(done):
        return model
    if any(done):
        raise ValueError(f"diffattn.hf.accelerate: {sum(done)} of {len(done)} attention layers are "
                         "accelerated already; call diffattn.hf.restore(model) and then accelerate "
                         "it again.")
    for layer in layers:
        _check(layer)
    for layer in layers:
        layer.__class__ = FusedDiffLlamaAttention
    for decoder in _decoders(model):
        implementation = decoder.config._attn_implementation
        if implementation not in ("sdpa", "eager"):  # these two make masks that say everything
            setattr(decoder, _FORMER, implementation)
            decoder.config._attn_implementation = "sdpa"
        setattr(decoder, _HOOK, decoder.register_forward_pre_hook(_pass_padding, with_kwargs=True))
    return model


def restore(model: Model) -> Model:
    """Undoes `accelerate`; returns `model`. A model that was not accelerated stays as it is."""
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
                         "DiffLlamaAttention's; accelerate the model before it is replaced.")
    dropout = max(layer.attention_dropout, layer.config.attention_dropout)
    if dropout > 0:
        raise ValueError(f"{where} has attention_dropout = {dropout}, which differential attention "
                         "does not define; set it to 0 in the config and in the layers.")
    for name, parameter in layer.named_parameters():
        if parameter.dtype in _FLOAT8:
            raise ValueError(f"{where} has {name} in {parameter.dtype}, which the operator does "
                             "not take; load the model in bfloat16 (dtype=torch.bfloat16) first.")


class _Padding:
    """Columns that are padding; all else is causal."""

    def __init__(self, mask: Optional[Tensor]):
        self.mask = mask  # [B, N], nonzero where a column counts; None: all do
        self._bounds: Optional[Tuple[Tensor, Tensor]] = None
        self._looked = False

    def bounds(self) -> Optional[Tuple[Tensor, Tensor]]:
        """key_starts and key_lengths, if these say it all. Looks at values, once for all layers."""
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
    """Who sees whom, as options of the operator. `mask` is what transformers made: nothing for a
    plain causal map, else [B, 1, M, N] with causality in it. `padding` is what the hook knows."""
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
    """Tells the layers when the map is causal but for padded columns, and which these are.

    Under torch.compile transformers writes every mask out, [B, 1, M, N], since it may not look at
    values there; one row of it says the same, and a plain causal map needs none.
    """
    names = ("input_ids", "attention_mask", "position_ids", "past_key_values")
    given = {**dict(zip(names, args)), **kwargs}
    mask, cache = given.get("attention_mask"), given.get("past_key_values")
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
        return args, kwargs
    if cache is not None and type(cache) is not DynamicCache:
        return args, kwargs  # columns beyond the filled ones
    if not getattr(decoder.config, "is_causal", True):
        return args, kwargs
    if mask is None and cache is None and given.get("position_ids") is not None:
        return args, kwargs  # maybe several sequences in a row, which only positions tell apart
    return args, {**kwargs, "diffattn_padding": _Padding(mask)}
