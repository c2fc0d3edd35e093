# SPDX-License-Identifier: Apache-2.0
"""Runs Hugging Face's DiffLlama on the fused operator, switched on and off by one word.

    import diffattn.hf
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="diffattn")
    model.set_attn_implementation("sdpa")            # off
    model.set_attn_implementation("diffattn")        # on

`accelerate(model)` and `restore(model)` do the same for a model that is inside another module.

The modules stay the same objects with the same parameters, names and hooks. Saving, loading, `generate`, `Trainer`,
gradient checkpointing, LoRA, FSDP2 and torch.compile work as before. transformers calls a registered attention
function once for each half of the values, so it cannot fuse them. Therefore importing this module makes the forward
of DiffLlamaAttention look at the word itself.
"""
import functools
import sys
from typing import Any, Dict, List, Optional, Tuple, TypeVar

import torch
from torch import Tensor, nn

from diffattn.ops import attention, decode

try:
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.cache_utils import Cache
    from transformers.models.diffllama.modeling_diffllama import (DiffLlamaAttention, DiffLlamaDecoderLayer,
                                                                  DiffLlamaModel, apply_rotary_pos_emb,
                                                                  eager_attention_forward)
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 13):
        raise ImportError(f"this is {transformers.__version__}")
except ImportError as error:
    raise ImportError("diffattn.hf needs transformers 5.13 or later: "
                      f"pip install 'transformers>=5.13' ({error}).") from error

from diffattn import _hf_masks
from diffattn._hf_cache import join, joined_layer
from diffattn._hf_decode import token_layer

__all__ = ["NAME", "accelerate", "restore"]

#: The word that switches the fused operator on.
NAME = "diffattn"

Model = TypeVar("Model", bound=nn.Module)

_FORMER = "_diffattn_former_implementation"
_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "use_cache")
_FLOAT8 = {getattr(torch, name) for name in dir(torch) if name.startswith("float8_")}
_attention_forward, _layer_forward = DiffLlamaAttention.forward, DiffLlamaDecoderLayer.forward
_model_forward = DiffLlamaModel.forward


def accelerate(model: Model, *, layers: bool = False) -> Model:
    """Makes every DiffLlama attention layer of `model` use the fused operator. Returns `model`.

    layers=True also puts norms, SwiGLU and, while training, the loss on fused kernels (diffattn.hf_layers); the model
    then returns no logits beside a loss.

    Works on every DiffLlama class (with any head), also inside a wrapper module. A second call changes
    nothing. Raises TypeError if the model has no DiffLlama attention, and ValueError if it cannot be
    accelerated in its current state; the message says what to do.

    >>> from transformers import DiffLlamaConfig, DiffLlamaForCausalLM
    >>> model = DiffLlamaForCausalLM(DiffLlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48,
    ...                                              num_hidden_layers=1, num_attention_heads=4))
    >>> diffattn.hf.accelerate(model).config._attn_implementation
    'diffattn'
    """
    attentions = _attention_layers(model) if isinstance(model, nn.Module) else []
    if not attentions:
        raise TypeError("diffattn.hf.accelerate: expected a transformers DiffLlama model, got "
                        f"{type(model).__name__}, which has no DiffLlamaAttention; `diffattn convert` "
                        "converts a Llama model to a DiffLlama.")
    for attention_layer in attentions:
        _check(attention_layer)
    for decoder in _decoders(model):
        if decoder.config._attn_implementation != NAME:
            setattr(decoder, _FORMER, decoder.config._attn_implementation)
    for part in (*attentions, *_decoders(model)):
        part.config._attn_implementation = NAME
    if layers:
        from diffattn import hf_layers  # needs the full library
        hf_layers.enable(model)
    return model


def restore(model: Model) -> Model:
    """Undoes `accelerate` and returns `model`. Does nothing if the model is not accelerated.

    >>> diffattn.hf.restore(model).config._attn_implementation
    'sdpa'
    """
    if "diffattn.hf_layers" in sys.modules:
        sys.modules["diffattn.hf_layers"].disable(model)
    former = "sdpa"
    for decoder in _decoders(model):
        former = decoder.__dict__.pop(_FORMER, former)
    for part in (*_attention_layers(model), *_decoders(model)):
        if part.config._attn_implementation == NAME:
            part.config._attn_implementation = former
    return model


def _attention_layers(model: nn.Module) -> List[DiffLlamaAttention]:
    return [module for module in model.modules() if isinstance(module, DiffLlamaAttention)]


def _decoders(model: nn.Module) -> List[DiffLlamaModel]:
    return [module for module in model.modules() if isinstance(module, DiffLlamaModel)]


def _check(layer: DiffLlamaAttention) -> None:
    where = f"diffattn.hf.accelerate: attention layer {layer.layer_idx}"
    if type(layer).forward is not DiffLlamaAttention.forward:
        raise ValueError(f"{where} is a {type(layer).__name__}, whose forward differs from "
                         "DiffLlamaAttention's; call diffattn.attention there yourself.")
    dropout = max(layer.attention_dropout, layer.config.attention_dropout)
    if dropout > 0:
        raise ValueError(f"{where} has attention_dropout = {dropout}, which differential attention "
                         "does not define; set it to 0 in the config and in the layers.")
    for name, parameter in layer.named_parameters():
        if parameter.dtype in _FLOAT8:
            raise ValueError(f"{where} has {name} in {parameter.dtype}, which the operator does "
                             "not support; load the model in bfloat16 (dtype=torch.bfloat16).")


def _fused(self: DiffLlamaAttention, hidden_states: Tensor, position_embeddings: Tuple[Tensor, Tensor],
           attention_mask: Optional[Tensor], past_key_values: Optional[Cache],
           padding: Optional[_hf_masks.Padding], **kwargs: Any) -> Tuple[Tensor, None]:
    """Computes both maps, their difference and the head norm of a layer in one operator."""
    heads = (*hidden_states.shape[:-1], -1, self.head_dim)
    q = self.q_proj(hidden_states).view(heads)  # [B, M, H, D]
    k = self.k_proj(hidden_states).view(heads)
    v = self.v_proj(hidden_states).view(heads)
    q, k = _rotate(q, k, *position_embeddings)
    k, v = _with_cache(self.layer_idx, k, v, past_key_values)

    rows, columns = q.shape[1], k.shape[1]
    visible = _hf_masks.visible(columns, attention_mask, padding)
    if attention_mask is None:
        visible["causal"] = kwargs.get("is_causal", self.is_causal) is not False
        if visible["causal"] and columns > rows > 1 and padding is None:
            # This is the prefill of a static cache: columns after the prompt are still empty.
            k, v = k[:, :rows], v[:, :rows]

    # Heads i and i + H/2 give the two maps of head i; the values of head i are already joined.
    q1, q2 = q.chunk(2, dim=2)
    k1, k2 = k.chunk(2, dim=2)
    call = attention
    if rows == 1 and not torch.is_grad_enabled():
        call = decode
        del visible["causal"]
    out = call(q1, q2, k1, k2, v, _lambda(self, q.dtype), scale=self.scaling,
               norm_weight=self.groupnorm.weight, norm_eps=self.groupnorm.eps,
               out_scale=1 - self.lambda_init, **visible)
    return self.o_proj(out.flatten(-2)), None


def _with_cache(layer: int, k: Tensor, v: Tensor, cache: Optional[Cache]) -> Tuple[Tensor, Tensor]:
    """Adds k and v [B, M, Hkv, D] to the cache. Returns all keys, and all values as [B, N, Hkv / 2, 2 D]."""
    if cache is None:
        return k, join(v)
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        appending = joined_layer(cache, layer)
        if appending is not None:
            return appending.append(k, v)
    k, v = cache.update(k.transpose(1, 2), v.transpose(1, 2), layer)
    return k.transpose(1, 2), join(v.transpose(1, 2))


def _lambda(self: DiffLlamaAttention, dtype: torch.dtype) -> Tensor:
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


@functools.wraps(_attention_forward)
def _dispatch(self: DiffLlamaAttention, hidden_states: Tensor, position_embeddings: Tuple[Tensor, Tensor],
              attention_mask: Optional[Tensor] = None, past_key_values: Optional[Cache] = None,
              diffattn_padding: Optional[_hf_masks.Padding] = None, **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """The forward of DiffLlamaAttention."""
    if self.config._attn_implementation == NAME and not _wants_maps(self.config, kwargs):
        return _fused(self, hidden_states, position_embeddings, attention_mask, past_key_values, diffattn_padding,
                      **kwargs)
    return _attention_forward(self, hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)


@functools.wraps(_layer_forward)
def _dispatch_layer(self: DiffLlamaDecoderLayer, hidden_states: Tensor, attention_mask: Optional[Tensor] = None,
                    position_ids: Optional[Tensor] = None, past_key_values: Optional[Cache] = None,
                    use_cache: Optional[bool] = False,
                    position_embeddings: Optional[Tuple[Tensor, Tensor]] = None, **kwargs: Any) -> Any:
    """The forward of DiffLlamaDecoderLayer."""
    config = self.self_attn.config
    if config._attn_implementation == NAME and position_embeddings is not None and not _wants_maps(config, kwargs):
        out = token_layer(self, hidden_states, attention_mask, past_key_values, position_embeddings,
                          kwargs.get("diffattn_padding"))
        if out is not None:
            return out
    return _layer_forward(self, hidden_states, attention_mask=attention_mask, position_ids=position_ids,
                          past_key_values=past_key_values, use_cache=use_cache,
                          position_embeddings=position_embeddings, **kwargs)


def _wants_maps(config: Any, kwargs: Dict[str, Any]) -> bool:
    return bool(kwargs.get("output_attentions", config.output_attentions))


@functools.wraps(_model_forward)
def _forward_with_padding(self: DiffLlamaModel, *args: Any, **kwargs: Any) -> Any:
    """The forward of DiffLlamaModel."""
    if self.config._attn_implementation != NAME:
        return _model_forward(self, *args, **kwargs)
    given = {**dict(zip(_ARGUMENTS, args)), **kwargs}
    if getattr(self, _FORMER, None) == "eager":
        given["attention_mask"] = _hf_masks.eager_mask(given, self.dtype)
    padding = _hf_masks.padding_of(self.config, given)
    if padding is not None:
        given["diffattn_padding"] = padding
    return _model_forward(self, *args[len(_ARGUMENTS):], **given)


def _attention_weights(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
                       attention_mask: Optional[Tensor], **kwargs: Any) -> Tuple[Tensor, Optional[Tensor]]:
    """The registered function. transformers calls it for `output_attentions`, and for models that are no DiffLlama."""
    if not isinstance(module, DiffLlamaAttention):
        raise ValueError("diffattn: argument 'attn_implementation': expected 'sdpa' or 'eager' for "
                         f"{type(module).__name__}, got '{NAME}', which computes differential attention; `diffattn "
                         "convert` converts a Llama model to a DiffLlama.")
    rows, columns = query.shape[2], key.shape[2]
    if attention_mask is None or attention_mask.dim() == 2:
        seen = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)
        padding = seen if attention_mask is None else attention_mask[:, None, None, :].bool()
        attention_mask = seen & padding
    if attention_mask.dtype == torch.bool:
        attention_mask = torch.zeros_like(attention_mask, dtype=query.dtype).masked_fill_(
            ~attention_mask, torch.finfo(query.dtype).min)
    return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)


DiffLlamaAttention.forward = _dispatch
DiffLlamaDecoderLayer.forward = _dispatch_layer
DiffLlamaModel.forward = _forward_with_padding
AttentionInterface.register(NAME, _attention_weights)
AttentionMaskInterface.register(NAME, _hf_masks.make_mask)
