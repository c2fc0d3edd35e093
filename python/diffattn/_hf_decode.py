# SPDX-License-Identifier: Apache-2.0
"""A whole DiffLlama layer in one operator, for the next token of a few rows in float32 on a CPU."""
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers.models.diffllama.modeling_diffllama import (DiffLlamaAttention, DiffLlamaDecoderLayer, DiffLlamaMLP,
                                                              DiffLlamaRMSNorm)

from diffattn._hf_cache import joined_layer
from diffattn._hf_masks import Padding

MAX_ROWS = 4  # as kFewRows in src/ops/layers/layers.h


def _is_plain(module: nn.Module, kind: type) -> bool:
    """True if calling the module runs the forward of `kind` and nothing else: no LoRA, no hooks, no sharding."""
    return (type(module) is kind and "forward" not in module.__dict__ and not module._forward_hooks
            and not module._forward_pre_hooks)


def _parts(layer: DiffLlamaDecoderLayer) -> Optional[List[Tensor]]:
    """Returns the parameters in the order of the operator, or None if a part of the layer is not transformers' own."""
    attention, mlp = layer.self_attn, layer.mlp
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    if not (_is_plain(attention, DiffLlamaAttention) and _is_plain(mlp, DiffLlamaMLP)
            and all(_is_plain(norm, DiffLlamaRMSNorm) for norm in norms)):
        return None
    linears = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj,
               mlp.down_proj)
    if not all(_is_plain(linear, nn.Linear) and linear.bias is None for linear in linears):
        return None
    q, k, v, out, gate, up, down = (linear.weight for linear in linears)
    parts = [norms[0].weight, q, k, v, out, norms[1].weight, gate, up, down, attention.lambda_q1, attention.lambda_k1,
             attention.lambda_q2, attention.lambda_k2]
    plain = all(part.dtype == torch.float32 and part.is_contiguous() and part.device.type == "cpu" for part in parts)
    return parts if plain else None


def _starts(columns: int, mask: Any, padding: Optional[Padding]) -> Tuple[bool, Optional[Tensor]]:
    """Returns whether each row sees the columns from some start on to the last, and the starts (None: all 0)."""
    if padding is None:
        return mask is None, None
    if padding.mask is None:
        return True, None
    bounds = padding.bounds() if padding.mask.shape[-1] == columns else None
    if bounds is None or not padding.to_the_end():
        return False, None
    return True, bounds[0]


def token_layer(layer: DiffLlamaDecoderLayer, x: Tensor, mask: Any, cache: Any, angles: Tuple[Tensor, Tensor],
                padding: Optional[Padding]) -> Optional[Tensor]:
    """Returns the layer's output for x [B, 1, E], or None if the operator does not fit. Adds the token to the cache."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or cache is None:
        return None
    if x.dim() != 3 or x.shape[1] != 1 or x.shape[0] > MAX_ROWS or x.dtype != torch.float32 or x.device.type != "cpu":
        return None
    if torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active() or type(x) is not Tensor:
        return None
    if torch_module._has_any_global_hook() or layer.self_attn.config.hidden_act != "silu":
        return None
    if torch.ops.diffattn.backend_for(x.device, x.dtype) == "composed":
        return None
    attention, cos, sin = layer.self_attn, *angles
    stored = joined_layer(cache, attention.layer_idx)
    room = stored.room_for_token() if stored is not None else None
    parts = _parts(layer) if room is not None else None
    if stored is None or room is None or parts is None or cos.dtype != torch.float32:
        return None
    keys, values, count = room
    fits, starts = _starts(count + 1, mask, padding)
    if not fits or keys.shape[0] != x.shape[0] or keys.dtype != torch.float32 or not _in_one_piece(keys, values):
        return None
    half = cos.shape[-1] // 2  # the second half repeats the first
    out: Tensor = torch.ops.diffattn.token_layer(
        x.contiguous(), parts, keys, values, count, cos[:, 0, :half].contiguous(), sin[:, 0, :half].contiguous(),
        key_starts=starts, norm_eps=layer.input_layernorm.variance_epsilon, head_norm_eps=attention.groupnorm.eps,
        lambda_init=attention.lambda_init)
    stored.add_token()
    return out


def _in_one_piece(keys: Tensor, values: Tensor) -> bool:
    """True if the heads of a token lie side by side, as the operator writes them."""
    return all(rows.stride(-1) == 1 and rows.stride(-2) == rows.shape[-1] for rows in (keys, values))
