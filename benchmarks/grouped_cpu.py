# SPDX-License-Identifier: Apache-2.0
"""Times grouped attention on one CPU thread: shared noise heads beside a copy of them for each signal head.

    python benchmarks/grouped_cpu.py --library build/release/libdiffattn.so --signals 4

Both ways run in turn in one process. Times are processor time in ms: the median over the rounds, and the median and
quartiles of the ratio of the two within a round. Times include copying the noise heads and summing their gradients.
"""
import argparse
import statistics
import time
from typing import Callable, Dict, List, Tuple

import torch

WANTED = [True, True, True, True, True, True, False, False]  # gradients: all but those of mask and norm weight
NORM_EPS = 1e-5


def seconds(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def passes_of(signals: int, dtype: torch.dtype, n: int, groups: int, d: int, width: int, causal: bool,
              norm: bool) -> Dict[str, Tuple[Callable, Callable]]:
    """Returns two calls for each pass, on the same random tensors: with copies of the noise heads, and shared ones.

    With `norm` the output of each head has an RMS norm, and the forward saves O for the backward, as autograd does.
    """
    operators = torch.ops.diffattn
    q1 = torch.randn(1, n, groups * signals, d).to(dtype)
    q2, k1, k2 = (torch.randn(1, n, groups, d).to(dtype) for _ in range(3))
    v = torch.randn(1, n, groups, width).to(dtype)
    dout = torch.randn(1, n, groups * signals, width).to(dtype)
    lam = torch.tensor(0.4)
    options = dict(causal=causal, norm_eps=NORM_EPS if norm else None)

    def copies() -> torch.Tensor:
        return q2.repeat_interleave(signals, 2)

    def forward(q: torch.Tensor) -> List[torch.Tensor]:
        return operators.attention_forward(q1, q, k1, k2, v, lam, save_o=norm, **options)

    saved = forward(q2)[1:]

    def backward(q: torch.Tensor) -> List[torch.Tensor]:
        return operators.attention_backward(dout, q1, q, k1, k2, v, lam, *saved, WANTED, **options)

    return {
        "forward": (lambda: forward(copies()), lambda: forward(q2)),
        "backward": (lambda: backward(copies())[1].unflatten(2, (groups, signals)).sum(3), lambda: backward(q2)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="build/release/libdiffattn.so")
    parser.add_argument("--signals", type=int, default=4, help="signal heads of a noise head")
    parser.add_argument("--groups", type=int, default=1, help="noise heads; as many kv heads")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--value-dim", type=int, default=None)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--masks", nargs="+", default=["causal", "full"])
    parser.add_argument("--passes", nargs="+", default=["forward", "backward"])
    parser.add_argument("--norm", action="store_true", help="a norm of each head's output, as in Motif")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.library)
    torch.set_num_threads(1)
    n, d, groups, signals = arguments.seq, arguments.head_dim, arguments.groups, arguments.signals
    width = arguments.value_dim or 2 * d
    print(f"one thread, N = {n}, D = {d}, Dv = {width}, {groups} groups of {signals} + 1 heads, "
          f"{'head norm, ' if arguments.norm else ''}{arguments.rounds} rounds")
    print("| pass | copies (ms) | shared (ms) | ratio | quartiles |\n|---|---|---|---|---|")
    for dtype in (getattr(torch, name) for name in arguments.dtypes):
        for mask in arguments.masks:
            passes = passes_of(signals, dtype, n, groups, d, width, mask == "causal", arguments.norm)
            for name in arguments.passes:
                calls = passes[name]
                times = [[seconds(call) for call in calls] for _ in range(arguments.rounds + 1)][1:]
                ratios = [shared / copied for copied, shared in times]
                low, middle, high = statistics.quantiles(ratios, n=4)
                copied, shared = (1e3 * statistics.median(column) for column in zip(*times))
                print(f"| {str(dtype)[6:]} {name}, {mask} | {copied:.1f} | {shared:.1f} | "
                      f"{middle:.2f} | {low:.2f} to {high:.2f} |", flush=True)


if __name__ == "__main__":
    main()
