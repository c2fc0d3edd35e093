# SPDX-License-Identifier: Apache-2.0
"""attention under the transforms of torch.func: grad, vjp, vmap, and per-sample gradients.

torch.func does not see through autograd functions in C++, so this is the same one in Python.
"""
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

def active() -> bool:
    """True inside a transform of torch.func."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


class _Gradients(torch.autograd.Function):
    """The backward pass. A function of its own, since the operator's autograd kernel is in C++, too."""
    generate_vmap_rule = True

    @staticmethod
    def forward(dout: Tensor, q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Tensor,
                norm_weight: Optional[Tensor], mask: Optional[Tensor], lse1: Tensor, lse2: Tensor, o: Tensor,
                o2: Tensor, wanted: List[bool], options: Dict[str, Any]) -> Tuple[Tensor, ...]:
        made: Tuple[Tensor, ...] = torch.ops.diffattn.attention_backward(
            dout.contiguous(), q1, q2, k1, k2, v, lam, lse1, lse2, o, o2, wanted, norm_weight=norm_weight, mask=mask,
            **options)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("diffattn: attention has no second derivative (double backward)")


class _Attention(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Tensor, norm_weight: Optional[Tensor],
                mask: Optional[Tensor], options: Dict[str, Any]) -> Tuple[Tensor, ...]:
        made: Tuple[Tensor, ...] = torch.ops.diffattn.attention_forward(
            q1, q2, k1, k2, v, lam, norm_weight=norm_weight, mask=mask, save_outputs=True, **options)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, ...]) -> None:
        *tensors, ctx.options = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Tuple[Any, ...]:
        q1, q2, k1, k2, v, lam, norm_weight, mask, *saved = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:8])
        gradients = _Gradients.apply(dout, q1, q2, k1, k2, v, lam, norm_weight, mask, *saved, wanted, ctx.options)
        return (*(gradient if want else None for gradient, want in zip(gradients, wanted)), None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("diffattn: attention has no forward-mode derivative; use torch.func.vjp, grad or jacrev")


def attention(*tensors: Tensor, norm_weight: Optional[Tensor], mask: Optional[Tensor], **options: Any) -> Tensor:
    """Takes the arguments of torch.ops.diffattn.attention."""
    out: Tensor = _Attention.apply(*tensors, norm_weight, mask, options)[0]
    return out
