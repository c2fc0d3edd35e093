# SPDX-License-Identifier: Apache-2.0
"""Times a training step of attention with a head norm on one CPU thread: O saved beside O computed a second time.

    python benchmarks/saved_output_cpu.py --library build/release/libdiffattn.so

Both ways run in turn in one process. Times are processor time in ms: the median over the rounds, and the median and
quartiles of the ratio of the two within a round.
"""
import argparse
import statistics
from typing import Callable, Dict, List, Tuple

import torch
from grouped_cpu import NORM_EPS, seconds

WANTED = [True, True, True, True, True, True, True, False]  # gradients: all but that of the mask


def passes_of(dtype: torch.dtype, n: int, heads: int, d: int, causal: bool) -> Dict[str, Tuple[Callable, Callable]]:
    """Returns two calls for each pass, on the same random tensors: without a saved O, and with it."""
    operators = torch.ops.diffattn
    q1, q2, k1, k2 = (torch.randn(1, n, heads, d).to(dtype) for _ in range(4))
    v, dout = (torch.randn(1, n, heads, 2 * d).to(dtype) for _ in range(2))
    tensors = (q1, q2, k1, k2, v, torch.tensor(0.4))
    options = dict(causal=causal, norm_weight=torch.rand(2 * d) + 0.5, norm_eps=NORM_EPS)

    def forward(save_o: bool) -> List[torch.Tensor]:
        return operators.attention_forward(*tensors, save_o=save_o, **options)

    def backward(saved: List[torch.Tensor]) -> List[torch.Tensor]:
        return operators.attention_backward(dout, *tensors, *saved, WANTED, **options)

    without, with_o = forward(False)[1:], forward(True)[1:]
    return {
        "forward": (lambda: forward(False), lambda: forward(True)),
        "backward": (lambda: backward(without), lambda: backward(with_o)),
        "both": (lambda: backward(forward(False)[1:]), lambda: backward(forward(True)[1:])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="build/release/libdiffattn.so")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.library)
    torch.set_num_threads(1)
    n, d, heads = arguments.seq, arguments.head_dim, arguments.heads
    print(f"one thread, {heads} heads, N = {n}, D = {d}, Dv = {2 * d}, {arguments.rounds} rounds")
    print("| pass | computed again (ms) | saved (ms) | ratio | quartiles |\n|---|---|---|---|---|")
    for dtype in (getattr(torch, name) for name in arguments.dtypes):
        for causal in (True, False):
            for name, calls in passes_of(dtype, n, heads, d, causal).items():
                times = [[seconds(call) for call in calls] for _ in range(arguments.rounds + 1)][1:]
                ratios = [saved / again for again, saved in times]
                low, middle, high = statistics.quantiles(ratios, n=4)
                again, saved = (1e3 * statistics.median(column) for column in zip(*times))
                print(f"| {str(dtype)[6:]} {name}, {'causal' if causal else 'full'} | {again:.1f} | {saved:.1f} | "
                      f"{middle:.2f} | {low:.2f} to {high:.2f} |", flush=True)


if __name__ == "__main__":
    main()
