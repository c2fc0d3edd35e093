#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the operator with other ways to compute differential attention, on one GPU: torch's own
attention, flex_attention, and FlashAttention-4 if it is installed.

    python benchmarks/cuda/peers.py build/libdiffattn.so
    python benchmarks/cuda/peers.py build/libdiffattn.so --shapes d64-2k,d128-4k --no-flex

Every route computes (softmax(q1 k1') - lambda softmax(q2 k2')) v from the same bf16 inputs. Before
timing, we check each output, and all gradients of our route, against float64 on the last head (on
its whole group if heads share k and v). Two routes are only timed: "plain" is ordinary attention of
equal width (H Dv / D heads), and "layer" is our route with the head norm and the gradients of
lambda and of the norm weight.

Each round times the routes in a random order (`do_bench`, median); the table shows medians over
rounds. A route that takes more than 1.5 times as long as the fastest is not timed in later rounds.
TFLOP/s count the useful work per visible pair: 4 D + 4 Dv forward, 12 D + 4 Dv backward.
"""
import argparse
import dataclasses
import gc
import random
import statistics
import time
from typing import Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.testing import do_bench

LAMBDA = 0.5
OURS = ("diffattn", "layer", "plain", "plain fa4")
Route = Callable[[List[Tensor]], Tensor]
Times = Dict[str, List[Optional[float]]]  # route: [forward, backward] in ms


@dataclasses.dataclass
class Shape:
    batch: int
    seq: int
    heads: int
    dim: int
    causal: bool = True
    wide: int = 2  # Dv / D
    kv_heads: int = 0
    window: Optional[int] = None
    lengths: Tuple[int, ...] = ()
    shared: bool = False  # k1 is k2

    def pairs(self) -> float:
        def of(n: int) -> float:
            seen = n * (n + 1) / 2 if self.causal else n * n
            rest = n - self.window if self.window and n > self.window else 0
            return seen - rest * (rest + 1) / 2
        return self.heads * sum(of(n) for n in self.lengths or [self.seq] * self.batch)

    def flops(self, backward: bool) -> float:
        return self.pairs() * self.dim * ((12 if backward else 4) + 4 * self.wide)

    def group(self) -> int:
        return self.heads // self.kv_heads if self.kv_heads else 1


SHAPES = {
    "d64-2k": Shape(8, 2048, 16, 64),
    "d64-4k": Shape(4, 4096, 16, 64),
    "d64-16k": Shape(1, 16384, 16, 64),
    "d64-4k-full": Shape(4, 4096, 16, 64, causal=False),
    "d128-4k": Shape(4, 4096, 8, 128),
    "d128-16k": Shape(1, 16384, 8, 128),
    "v2-d64-4k": Shape(4, 4096, 16, 64, wide=1, shared=True),
    "v2-d128-4k": Shape(4, 4096, 16, 128, wide=1, shared=True),
    "v2-d128-16k": Shape(1, 16384, 16, 128, wide=1, shared=True),
}
UNEVEN = tuple(455 * i for i in range(1, 8)) + (16384 - 455 * 28,)
# Our route with various options, and the dense shapes that each is compared with.
OPTIONS = {
    "d64-16k": Shape(1, 16384, 16, 64),
    "d64-4k": Shape(4, 4096, 16, 64),
    "d64 window 1024": Shape(1, 16384, 16, 64, window=1024),
    "d64 uneven": Shape(1, 16384, 16, 64, lengths=UNEVEN),
    "d64 4 per kv": Shape(4, 4096, 16, 64, kv_heads=4),
    "d128-16k": Shape(1, 16384, 8, 128),
    "d128-4k": Shape(4, 4096, 8, 128),
    "d128 window 1024": Shape(1, 16384, 8, 128, window=1024),
    "d128 uneven": Shape(1, 16384, 8, 128, lengths=UNEVEN),
    "d128 4 per kv": Shape(4, 4096, 8, 128, kv_heads=2),
}


def inputs(shape: Shape) -> List[Tensor]:
    """Returns random q1, q2, k1, k2, v, each [B, H, N, width]."""
    def draw(heads: int, width: int) -> Tensor:
        rows = torch.randn(shape.batch, shape.seq, heads, width, device="cuda",
                           dtype=torch.bfloat16)
        return rows.transpose(1, 2).requires_grad_()
    kv = shape.kv_heads or shape.heads
    q1, q2, k1 = (draw(h, shape.dim) for h in (shape.heads, shape.heads, kv))
    k2 = k1 if shape.shared else draw(kv, shape.dim)
    return [q1, q2, k1, k2, draw(kv, shape.wide * shape.dim)]


def leaves(shape: Shape, x: List[Tensor]) -> List[Tensor]:
    return [x[0], x[1], x[2], x[4]] if shape.shared else x


def ours(shape: Shape) -> Route:
    lam = torch.full((shape.heads,), LAMBDA, device="cuda")
    starts = [0]
    for n in shape.lengths:
        starts.append(starts[-1] + n)
    packed = torch.tensor(starts, dtype=torch.int32, device="cuda") if shape.lengths else None

    def run(x: List[Tensor], lam: Tensor = lam, **options: object) -> Tensor:
        rows = [t.transpose(1, 2) for t in x]
        if packed is not None:
            rows = [t.squeeze(0) for t in rows]  # a view, also in the backward
            options.update(cu_seqlens_q=packed, cu_seqlens_k=packed)
        out = torch.ops.diffattn.attention(*rows, lam, causal=shape.causal, window=shape.window,
                                           **options)
        return (out.unsqueeze(0) if packed is not None else out).transpose(1, 2)
    return run


def sdpa(backend: SDPBackend, causal: bool) -> Callable[..., Tensor]:
    def call(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, **options)
    return call


def torch_routes(shape: Shape) -> Dict[str, Route]:
    """Returns routes over torch's own attention, which differ in calls and in padding."""
    found: Dict[str, Route] = {}
    scale = shape.dim ** -0.5
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                          ("flash", SDPBackend.FLASH_ATTENTION),
                          ("efficient", SDPBackend.EFFICIENT_ATTENTION)):
        call = sdpa(backend, shape.causal)

        def two(x: List[Tensor], call=call) -> Tensor:
            return call(x[0], x[2], x[4]) - LAMBDA * call(x[1], x[3], x[4])

        def four(x: List[Tensor], two=two) -> Tensor:
            return torch.cat([two([*x[:4], v]) for v in x[4].chunk(2, -1)], -1)

        def one(x: List[Tensor], call=call) -> Tensor:
            o = call(torch.cat(x[:2], 1), torch.cat(x[2:4], 1), torch.cat([x[4], x[4]], 1))
            return o[:, :shape.heads] - LAMBDA * o[:, shape.heads:]

        def padded(x: List[Tensor], call=call) -> Tensor:
            pad = [F.pad(t, (0, (shape.wide - 1) * shape.dim)) for t in x[:4]]
            return (call(pad[0], pad[2], x[4], scale=scale) -
                    LAMBDA * call(pad[1], pad[3], x[4], scale=scale))

        def zeros(x: List[Tensor], call=call) -> Tensor:  # k = [k1|k2], queries [q1|0] and [0|q2]
            zero = torch.zeros_like(x[0])
            q = torch.stack([torch.cat([x[0], zero], -1), torch.cat([zero, x[1]], -1)], 2)
            o = call(q.flatten(1, 2), torch.cat(x[2:4], -1), x[4], scale=scale, enable_gqa=True)
            return o[:, 0::2] - LAMBDA * o[:, 1::2]

        def groups(x: List[Tensor], call=call) -> Tensor:  # shared k: two query heads a kv head
            o = call(torch.stack(x[:2], 2).flatten(1, 2), x[2], x[4], enable_gqa=True)
            return o[:, 0::2] - LAMBDA * o[:, 1::2]

        if name == "efficient":
            found.update({f"{name} x 2": two})
        elif shape.shared:
            found.update({f"{name} x 2": two, f"{name} grouped": groups})
        elif name == "flash":
            found.update({f"{name} x 4": four, f"{name} padded": padded, f"{name} zeros": zeros})
        else:
            found.update({f"{name} x 2": two, f"{name} one call": one, f"{name} x 4": four,
                          f"{name} padded": padded, f"{name} zeros": zeros})
    return found


def flex_routes(shape: Shape) -> Dict[str, Route]:
    """Returns routes over flex_attention. Beyond Dv = 128 it gets halves of v, because its backward
    would exceed shared memory."""
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = None
    if shape.causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, shape.seq, shape.seq,
                                 device="cuda")

    def two(x: List[Tensor]) -> Tensor:
        return (compiled(x[0], x[2], x[4], block_mask=mask) -
                LAMBDA * compiled(x[1], x[3], x[4], block_mask=mask))

    def four(x: List[Tensor]) -> Tensor:
        return torch.cat([two([*x[:4], v]) for v in x[4].chunk(2, -1)], -1)

    return {"flex x 2": two} if shape.dim * shape.wide <= 128 else {"flex x 4": four}


def fa4() -> Optional[Callable[..., Tensor]]:
    """Returns FlashAttention-4 on [B, H, N, width], or None if its package is not installed."""
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError:
        return None

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        out = flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=causal)
        return (out[0] if isinstance(out, (tuple, list)) else out).transpose(1, 2)
    return call


def fa4_routes(shape: Shape) -> Dict[str, Route]:
    """Returns FlashAttention-4 routes: two calls with the wide v, or four with its halves.

    The backward of the wide call does not fit, so it is timed forward only."""
    call = fa4()
    if call is None or shape.shared:
        return {}

    def two(x: List[Tensor]) -> Tensor:
        return (call(x[0], x[2], x[4], shape.causal) -
                LAMBDA * call(x[1], x[3], x[4], shape.causal))

    def four(x: List[Tensor]) -> Tensor:
        halves = [v.transpose(1, 2).contiguous().transpose(1, 2) for v in x[4].chunk(2, -1)]
        return torch.cat([two([*x[:4], v]) for v in halves], -1)

    return {"fa4 x 2": two, "fa4 x 4": four}


def reference(shape: Shape, x: List[Tensor], gradient: Tensor) -> Tuple[Tensor, List[Tensor]]:
    """Returns output and gradients of the last group of heads and last sequence, in float64."""
    begin = shape.seq - shape.lengths[-1] if shape.lengths else 0
    heads = slice(shape.heads - shape.group(), shape.heads)
    y = [t.detach()[-1, heads if i < 2 else slice(-1, None), begin:].double().requires_grad_()
         for i, t in enumerate(x)]
    row = torch.arange(shape.seq - begin, device="cuda")[:, None]
    seen = row >= row.T if shape.causal else torch.ones_like(row >= row.T)
    if shape.window:
        seen &= row - row.T < shape.window

    def map_of(q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * shape.dim ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1)

    want = (map_of(y[0], y[2]) - LAMBDA * map_of(y[1], y[3])) @ y[4]
    got = torch.autograd.grad(want, y, gradient.detach()[-1, heads, begin:].double())
    if shape.shared:
        got = [got[0], got[1], got[2] + got[3], got[4]]
    return want.detach(), list(got)


def distance(shape: Shape, want: Tensor, got: Tensor) -> float:
    """Returns the relative Frobenius distance from a tensor of `reference`."""
    part = got.detach()[-1, -want.shape[0]:, -want.shape[1]:].double()
    return ((part - want).norm() / want.norm()).item()


class Contest:
    """The routes of one shape, checked and ready for timing."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.x = shape, inputs(shape)
        self.forward: Dict[str, Callable[[], object]] = {}
        self.backward: Dict[str, Callable[[], object]] = {}
        self.errors: Dict[str, str] = {}
        self.gradient = torch.randn_like(ours(shape)(self.x))
        self.want, self.slopes = reference(shape, self.x, self.gradient)

    def add(self, name: str, run: Route, check: bool = False) -> None:
        out, found = None, None
        try:
            out = run(self.x)
            found = torch.autograd.grad(out, leaves(self.shape, self.x), self.gradient,
                                        retain_graph=True)
        except Exception as reason:  # every library has its own types for "not supported"
            why = str(reason).strip().splitlines() or [type(reason).__name__]
            self.errors[name] = "skipped: " + why[0][:90]
            if out is None:
                return
        error = [distance(self.shape, self.want, out)]
        if check:
            error.append(max(distance(self.shape, *p) for p in zip(self.slopes, found)))
        self.errors[name] = " ".join(f"{e:.1e}" for e in error) + ("" if found else " no backward")
        if not max(error) < 3e-2:
            self.errors[name] = "wrong: " + self.errors[name]
            return
        self.forward[name] = lambda: run(self.x)
        if found is None:
            return
        self.backward[name] = lambda: torch.autograd.grad(
            out, leaves(self.shape, self.x), self.gradient, retain_graph=True)

    def add_layer(self) -> None:
        lam = torch.full((self.shape.heads,), LAMBDA, device="cuda", requires_grad=True)
        gain = torch.ones(self.shape.dim * self.shape.wide, device="cuda", requires_grad=True)
        call = ours(self.shape)

        def run() -> Tensor:
            return call(self.x, lam, norm_weight=gain, norm_eps=1e-5, out_scale=0.8)
        out = run()
        wanted = leaves(self.shape, self.x) + [lam, gain]
        self.forward["layer"] = run
        self.backward["layer"] = lambda: torch.autograd.grad(out, wanted, self.gradient,
                                                             retain_graph=True)

    def add_plain(self) -> None:
        s = self.shape
        x = [torch.randn(s.batch, s.seq, s.heads * s.wide, s.dim, device="cuda",
                         dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3)]
        calls = {"plain": sdpa(SDPBackend.CUDNN_ATTENTION, s.causal)}
        if fa4() is not None:
            calls["plain fa4"] = lambda q, k, v: fa4()(q, k, v, s.causal)
        for name, call in calls.items():
            out = call(*x)
            gradient = torch.randn_like(out)
            self.forward[name] = lambda call=call: call(*x)
            self.backward[name] = lambda out=out, gradient=gradient: torch.autograd.grad(
                out, x, gradient, retain_graph=True)


def measure(forward: Dict[str, Callable[[], object]], backward: Dict[str, Callable[[], object]],
            peers: List[str], rounds: int) -> Times:
    found: Dict[Tuple[str, int], List[float]] = {}
    steps = [(name, i) for i, step in enumerate((forward, backward)) for name in step]
    for _ in range(rounds):
        random.shuffle(steps)
        for name, i in steps:
            # "layer" is a training step: its forward saves what the backward reads.
            with torch.set_grad_enabled(i == 1 or name == "layer"):
                ms = do_bench((forward, backward)[i][name], warmup=4, rep=16,
                              return_mode="median")
            found.setdefault((name, i), []).append(ms)
        best = [min((min(found[n, i]) for n in peers if (n, i) in found), default=0)
                for i in range(2)]
        steps = [(n, i) for n, i in steps if n not in peers or min(found[n, i]) < 1.5 * best[i]]
    return {n: [statistics.median(found[n, i]) if (n, i) in found else None for i in range(2)]
            for n in forward}


def compare(name: str, shape: Shape, flex: bool, rounds: int) -> None:
    contest = Contest(shape)
    contest.add("diffattn", ours(shape), check=True)
    for route, run in torch_routes(shape).items():
        contest.add(route, run)
    if flex:
        for route, run in flex_routes(shape).items():
            contest.add(route, run)
    for route, run in fa4_routes(shape).items():
        contest.add(route, run)
    contest.add_layer()
    contest.add_plain()
    peers = [r for r in contest.forward if r not in OURS]
    times = measure(contest.forward, contest.backward, peers, rounds)
    fastest = [min(times[r][i] for r in peers if times[r][i]) for i in range(2)]
    for route, error in contest.errors.items():
        if route not in times:
            print(f"| {name} | {route} | {error} |")
    for route, (fwd, bwd) in times.items():
        flops = [shape.flops(False), shape.flops(True)]
        if route.startswith("plain"):
            flops = [shape.pairs() * shape.wide * shape.dim * n for n in (4, 10)]
        back = (f"{bwd:.3f} | {flops[1] / bwd / 1e9:.0f} | {fastest[0] / fwd:.2f} / "
                f"{fastest[1] / bwd:.2f}") if bwd else f"- | - | {fastest[0] / fwd:.2f} / -"
        print(f"| {name} | {route} | {fwd:.3f} | {flops[0] / fwd / 1e9:.0f} | {back} | "
              f"{contest.errors.get(route, '')} |")
    cost = sum(times["layer"]) / sum(times["plain"])
    print(f"{name}: fastest other route / ours {fastest[0] / times['diffattn'][0]:.2f} forward, "
          f"{fastest[1] / times['diffattn'][1]:.2f} backward"
          + (f"; layer / plain {cost:.3f}" if shape.wide == 2 else ""), flush=True)


def options(rounds: int, dim: int) -> None:
    """Compares our route with a window, packed sequences or grouped heads to the dense shapes."""
    cases = {name: Contest(shape) for name, shape in OPTIONS.items() if shape.dim == dim}
    forward, backward = {}, {}
    for name, case in cases.items():
        case.add("diffattn", ours(case.shape), check=True)
        forward[name] = case.forward["diffattn"]
        backward[name] = case.backward["diffattn"]
    times = measure(forward, backward, [], rounds)
    rate = {n: [c.shape.flops(bool(i)) / times[n][i] / 1e9 for i in range(2)]
            for n, c in cases.items()}
    for name, case in cases.items():
        dense = rate[f"d{dim}-16k" if case.shape.batch == 1 else f"d{dim}-4k"]
        share = [100 * r / d for r, d in zip(rate[name], dense)]
        print(f"| {name} | {times[name][0]:.3f} | {rate[name][0]:.0f} | {share[0]:.0f} % | "
              f"{times[name][1]:.3f} | {rate[name][1]:.0f} | {share[1]:.0f} % | "
              f"{case.errors['diffattn']} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libdiffattn.so")
    parser.add_argument("--shapes", default=",".join([*SHAPES, "options"]))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-flex", action="store_true", help="skip flex_attention, which "
                        "compiles for about ten seconds per shape")
    parser.add_argument("--compile", action="store_true", help="only compile flex_attention for "
                        "these shapes, so that a later run finds it in torch's cache")
    parser.add_argument("--seconds", type=float, default=torch.inf,
                        help="skip shapes that have not started after this many seconds")
    chosen = parser.parse_args()
    begin = time.monotonic()
    torch.ops.load_library(chosen.library)
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name()}, {chosen.rounds} rounds")
    for name in chosen.shapes.split(","):
        if time.monotonic() - begin > chosen.seconds:
            print(f"{name}: skipped: {chosen.seconds:.0f} s have passed (--seconds)")
        elif name == "options":
            if not chosen.compile:
                for dim in (64, 128):
                    options(chosen.rounds, dim)
        elif chosen.compile:
            contest = Contest(SHAPES[name])
            for route, run in flex_routes(SHAPES[name]).items():
                contest.add(route, run)
                with torch.no_grad():
                    run(contest.x)
                print(name, route, contest.errors[route])
        else:
            compare(name, SHAPES[name], not chosen.no_flex, chosen.rounds)
        gc.collect()
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
