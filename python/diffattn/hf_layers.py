# SPDX-License-Identifier: Apache-2.0
"""Norms, feed-forward layers and the loss of Hugging Face's DiffLlama on fused kernels.

    diffattn.hf.accelerate(model, layers=True)

`enable` marks the modules of a model, and the forward of their classes looks at the mark. Parameters, names and hooks
stay as they are. Under torch.compile the modules compute as before, since the compiler fuses them itself.

While the model trains, a call with labels returns a loss without logits: the head's product and the cross-entropy run
chunk by chunk, so the logits of all tokens never exist at once. Calls in evaluation mode return logits as before.
"""
import functools
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.diffllama.modeling_diffllama import (DiffLlamaForCausalLM, DiffLlamaMLP,
                                                              DiffLlamaRMSNorm)
from transformers.utils.generic import can_return_tuple

from diffattn import _full

_MARK = "_diffattn_layers"
_CLASSES = (DiffLlamaRMSNorm, DiffLlamaMLP, DiffLlamaForCausalLM)
_norm_forward, _mlp_forward = DiffLlamaRMSNorm.forward, DiffLlamaMLP.forward
_model_forward = DiffLlamaForCausalLM.forward


def enable(model: nn.Module) -> None:
    """Switches the fused kernels of all norms, feed-forward layers and language model heads on."""
    _full.library()  # has the loss
    for module in _modules(model):
        setattr(module, _MARK, True)


def disable(model: nn.Module) -> None:
    """Undoes `enable`."""
    for module in _modules(model):
        module.__dict__.pop(_MARK, None)


def _modules(model: nn.Module) -> List[nn.Module]:
    return [module for module in model.modules() if isinstance(module, _CLASSES)]


def _is_on(module: nn.Module, *tensors: Any) -> bool:
    """True if the module is marked, runs eagerly, and all tensors are ordinary ones that kernels can read."""
    return (getattr(module, _MARK, False) and not torch.compiler.is_compiling()
            and not torch._C._are_functorch_transforms_active()
            and all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors))


@functools.wraps(_norm_forward)
def _norm(self: DiffLlamaRMSNorm, hidden_states: Tensor) -> Tensor:
    x, weight = hidden_states, self.weight
    # On a CPU the kernel is for float32; torch's own operator takes over elsewhere.
    fused = x.dtype == weight.dtype and (x.is_cuda or x.dtype == torch.float32)
    if not (fused and _is_on(self, x, weight)):
        return _norm_forward(self, hidden_states)
    return torch.ops.diffattn.rms_norm(x, weight, self.variance_epsilon)


@functools.wraps(_mlp_forward)
def _mlp(self: DiffLlamaMLP, x: Tensor) -> Tensor:
    if self.config.hidden_act != "silu" or not _is_on(self, x):
        return _mlp_forward(self, x)
    return self.down_proj(torch.ops.diffattn.swiglu(self.gate_proj(x), self.up_proj(x)))


def _loss(self: DiffLlamaForCausalLM, hidden: Tensor, labels: Optional[Tensor], shift_labels: Optional[Tensor],
          num_items_in_batch: Any, ignore_index: int) -> Tensor:
    """Returns what ForCausalLMLoss returns for the logits of `hidden`."""
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    shift_labels = shift_labels.to(hidden.device).view(hidden.shape[:-1]).contiguous()
    mean, count = torch.ops.diffattn.linear_cross_entropy(hidden, self.lm_head.weight, shift_labels, ignore_index)
    if num_items_in_batch is None:
        return mean
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(mean.device)
    return mean * (count / num_items_in_batch)


def _takes_loss(self: DiffLlamaForCausalLM, labels: Optional[Tensor], logits_to_keep: Any) -> bool:
    head = self.lm_head
    return (labels is not None and self.training and isinstance(logits_to_keep, int) and logits_to_keep == 0
            and type(head) is nn.Linear and head.bias is None and not head._forward_hooks
            and self.loss_function is ForCausalLMLoss and _is_on(self, head.weight))


@can_return_tuple
def _training_forward(self: DiffLlamaForCausalLM, labels: Tensor, **kwargs: Any) -> CausalLMOutputWithPast:
    loss_options = {name: kwargs.pop(name, default) for name, default in
                    (("shift_labels", None), ("num_items_in_batch", None), ("ignore_index", -100))}
    outputs = self.model(**kwargs)
    return CausalLMOutputWithPast(loss=_loss(self, outputs.last_hidden_state, labels, **loss_options),
                                  past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states,
                                  attentions=outputs.attentions)


@functools.wraps(_model_forward)
def _causal_lm(self: DiffLlamaForCausalLM, input_ids: Optional[Tensor] = None, attention_mask: Optional[Tensor] = None,
               position_ids: Optional[Tensor] = None, past_key_values: Any = None,
               inputs_embeds: Optional[Tensor] = None, labels: Optional[Tensor] = None,
               use_cache: Optional[bool] = None, logits_to_keep: Any = 0,
               **kwargs: Any) -> "CausalLMOutputWithPast | Tuple[Any, ...]":
    inputs = dict(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                  past_key_values=past_key_values, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs)
    if _takes_loss(self, labels, logits_to_keep):
        return _training_forward(self, labels=labels, **inputs)
    return _model_forward(self, labels=labels, logits_to_keep=logits_to_keep, **inputs)


DiffLlamaRMSNorm.forward = _norm
DiffLlamaMLP.forward = _mlp
DiffLlamaForCausalLM.forward = _causal_lm
