#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The operator beside everything torch offers for differential attention, on one GPU.

    python benchmarks/cuda/peers.py build/libdiffattn.so
    python benchmarks/cuda/peers.py build/libdiffattn.so --shapes d64-2k,d128-4k --no-flex

Every route computes (softmax(q1 k1') - lambda softmax(q2 k2')) v from the same bf16 inputs and is
checked against float64 on some rows before it is timed; "plain" is ordinary attention of equal
width, 2 H heads. Routes are timed in turn, round after round (`do_bench`, median), and the best
round stands. TFLOP/s by the useful work, 12 D forward and 20 D backward per visible pair.
"""
import argparse
import dataclasses
from typing import Callable, Dict, List

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.testing import do_bench

LAMBDA = 0.5
Route = Callable[[List[Tensor]], Tensor]


@dataclasses.dataclass
class Shape:
    batch: int
    seq: int
    heads: int
    dim: int
    causal: bool

    def pairs(self) -> float:
        rows = self.batch * self.heads * self.seq
        return rows * ((self.seq + 1) / 2 if self.causal else self.seq)


SHAPES = {
    "d64-2k": Shape(8, 2048, 16, 64, True),
    "d64-4k": Shape(4, 4096, 16, 64, True),
    "d64-16k": Shape(1, 16384, 16, 64, True),
    "d64-4k-full": Shape(4, 4096, 16, 64, False),
    "d128-4k": Shape(4, 4096, 8, 128, True),
    "d128-16k": Shape(1, 16384, 8, 128, True),
}


def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def routes(shape: Shape, flex: bool) -> Dict[str, Route]:
    """From [q1, q2, k1, k2, v], each [B, H, N, width], to O in the same layout."""
    causal = shape.causal

    def ours(x: List[Tensor]) -> Tensor:
        lam = torch.full((shape.heads,), LAMBDA, device="cuda")
        rows = [t.transpose(1, 2) for t in x]
        return torch.ops.diffattn.attention(*rows, lam, causal=causal).transpose(1, 2)

    def two(x: List[Tensor]) -> Tensor:
        return call(x[0], x[2], x[4], causal) - LAMBDA * call(x[1], x[3], x[4], causal)

    def four(x: List[Tensor]) -> Tensor:
        halves = [two([*x[:4], v]) for v in x[4].chunk(2, -1)]
        return torch.cat(halves, -1)

    def padded(x: List[Tensor]) -> Tensor:  # one call of width 2 D: queries [q1|0] and [0|q2]
        zero = torch.zeros_like(x[0])
        q = torch.stack([torch.cat([x[0], zero], -1), torch.cat([zero, x[1]], -1)], 2)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            o = F.scaled_dot_product_attention(q.flatten(1, 2), torch.cat([x[2], x[3]], -1), x[4],
                                               is_causal=causal, scale=shape.dim ** -0.5,
                                               enable_gqa=True)
        return o[:, 0::2] - LAMBDA * o[:, 1::2]

    found = {"diffattn": ours, "cudnn x 2": two, "cudnn x 4": four, "cudnn padded": padded}
    if flex:
        compiled = torch.compile(flex_attention, dynamic=False)
        mask = None
        if causal:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, shape.seq, shape.seq,
                                     device="cuda")

        def flex_two(x: List[Tensor]) -> Tensor:
            return (compiled(x[0], x[2], x[4], block_mask=mask) -
                    LAMBDA * compiled(x[1], x[3], x[4], block_mask=mask))

        def flex_four(x: List[Tensor]) -> Tensor:
            return torch.cat([flex_two([*x[:4], v]) for v in x[4].chunk(2, -1)], -1)

        # At D = 128 the backward of the wide call does not fit into shared memory.
        found["flex x 2" if shape.dim < 128 else "flex x 4"] = (
            flex_two if shape.dim < 128 else flex_four)
    return found


def inputs(shape: Shape) -> List[Tensor]:
    def draw(width: int) -> Tensor:
        rows = torch.randn(shape.batch, shape.seq, shape.heads, width, device="cuda",
                           dtype=torch.bfloat16)
        return rows.transpose(1, 2).requires_grad_()
    return [draw(shape.dim) for _ in range(4)] + [draw(2 * shape.dim)]


def error(shape: Shape, x: List[Tensor], out: Tensor) -> float:
    """Relative, of some rows of the last head."""
    rows = torch.arange(0, shape.seq, max(1, shape.seq // 256), device="cuda")
    q1, q2, k1, k2, v = (t.detach()[-1, -1].double() for t in x)

    def map_of(q: Tensor, k: Tensor) -> Tensor:
        s = q[rows] @ k.T * shape.dim ** -0.5
        if shape.causal:
            s = s.masked_fill(torch.arange(shape.seq, device="cuda") > rows[:, None], -torch.inf)
        return s.softmax(-1)

    want = (map_of(q1, k1) - LAMBDA * map_of(q2, k2)) @ v
    return ((out.detach()[-1, -1][rows].double() - want).norm() / want.norm()).item()


def compare(name: str, shape: Shape, flex: bool, rounds: int) -> None:
    x = inputs(shape)
    forward: Dict[str, Callable[[], object]] = {}
    backward: Dict[str, Callable[[], object]] = {}
    errors: Dict[str, float] = {}
    for route, run in routes(shape, flex).items():
        try:
            out = run(x)
            errors[route] = error(shape, x, out)
            gradient = torch.randn_like(out)
            forward[route] = lambda run=run: run(x)
            backward[route] = lambda out=out, gradient=gradient: torch.autograd.grad(
                out, x, gradient, retain_graph=True)
            backward[route]()
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as reason:
            forward.pop(route, None), backward.pop(route, None)
            print(f"{name:12} {route:14} skipped: {str(reason).splitlines()[0][:100]}")
    plain = [torch.randn(shape.batch, 2 * shape.heads, shape.seq, shape.dim, device="cuda",
                         dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    forward["plain"] = lambda: call(*plain, shape.causal)
    plain_out = call(*plain, shape.causal)
    plain_gradient = torch.randn_like(plain_out)
    backward["plain"] = lambda: torch.autograd.grad(plain_out, plain, plain_gradient,
                                                    retain_graph=True)
    best: Dict[str, List[float]] = {route: [torch.inf, torch.inf] for route in forward}
    for _ in range(rounds):
        for i, step in enumerate((forward, backward)):
            for route, run in step.items():
                with torch.set_grad_enabled(i == 1):
                    ms = do_bench(run, warmup=20, rep=80, return_mode="median")
                best[route][i] = min(best[route][i], ms)
    peers = [r for r in best if r not in ("diffattn", "plain")]
    fastest = [min(best[r][i] for r in peers) for i in range(2)]
    for route, (fwd, bwd) in best.items():
        work = shape.pairs() * shape.dim / 1e9 * (1 if route != "plain" else 2 / 3)
        print(f"{name:12} {route:14} forward {fwd:8.4f} ms {12 * work / fwd:6.1f} TFLOP/s, "
              f"backward {bwd:8.4f} ms {(20 if route != 'plain' else 30) * work / bwd:6.1f} "
              f"TFLOP/s, fastest peer / it {fastest[0] / fwd:.2f} {fastest[1] / bwd:.2f}"
              + (f", error {errors[route]:.1e}" if route in errors else ""), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libdiffattn.so")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-flex", action="store_true", help="leave out flex_attention, which "
                        "compiles for some ten seconds a shape")
    options = parser.parse_args()
    torch.ops.load_library(options.library)
    print(torch.__version__, torch.cuda.get_device_name())
    for name in options.shapes.split(","):
        torch.manual_seed(SHAPES[name].seq + SHAPES[name].dim)
        compare(name, SHAPES[name], not options.no_flex, options.rounds)


if __name__ == "__main__":
    main()
