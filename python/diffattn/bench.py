# SPDX-License-Identifier: Apache-2.0
"""Times the fused operator beside other ways to compute differential attention, on this machine.

    python -m diffattn.bench                       # a table in at most a minute
    python -m diffattn.bench --device cuda --dtype bfloat16 --seq 4096,16384

All ways of a row take turns, round after round; the table has medians. `diffattn bench` measures more.
"""
import argparse
import statistics
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import diffattn

__all__ = ["Row", "main", "measure", "rows_of", "ways"]

Way = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
FUSED = "diffattn"


class Row(NamedTuple):
    """A line of the table.

    >>> diffattn.bench.Row("forward", 128, torch.float32, "cpu").title()
    'forward N=128 float32'
    """
    what: str  # "forward", "train" (forward and backward) or "decode" (one token)
    seq: int
    dtype: torch.dtype
    device: str

    def title(self) -> str:
        """Returns what the row measures.

        >>> diffattn.bench.Row("decode", 64, torch.bfloat16, "cpu").title()
        'decode N=64 bfloat16'
        """
        return f"{self.what} N={self.seq} {str(self.dtype).removeprefix('torch.')}"


def _two_calls(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    first, second = (_sdpa(q, k, v) for q, k in ((q1, k1), (q2, k2)))
    return first - lam * second


def _four_calls(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    first, second = (torch.cat([_sdpa(q, k, half) for half in v.chunk(2, dim=-1)], dim=-1)
                     for q, k in ((q1, k1), (q2, k2)))
    return first - lam * second


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1).transpose(1, 2)


def _naive(q1: Tensor, q2: Tensor, k1: Tensor, k2: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    rows, columns = q1.shape[1], k1.shape[1]
    hidden = torch.ones(rows, columns, dtype=torch.bool, device=q1.device).triu(columns - rows + 1)

    def weights(q: Tensor, k: Tensor) -> Tensor:
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * q.shape[-1]**-0.5
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    return ((weights(q1, k1) - lam * weights(q2, k2)) @ v.transpose(1, 2)).transpose(1, 2)


def ways(row: Row) -> Dict[str, Way]:
    """Returns the ways to compute a row by their names, the fused one first.

    >>> list(diffattn.bench.ways(diffattn.bench.Row("train", 128, torch.float32, "cpu")))
    ['diffattn', 'sdpa, wide V', 'sdpa, halves of V', 'matmul and softmax']
    """
    def fused(*tensors: Tensor) -> Tensor:
        if row.what == "decode":
            return diffattn.decode(*tensors)
        return diffattn.attention(*tensors, causal=True)

    return {FUSED: fused, "sdpa, wide V": _two_calls, "sdpa, halves of V": _four_calls, "matmul and softmax": _naive}


def _runner(row: Row, way: Way) -> Callable[[], None]:
    heads, dim, queries = 8, 64, 1 if row.what == "decode" else row.seq
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, queries, heads, dim)] * 2 + [(1, row.seq, heads, dim)] * 2 + [(1, row.seq, heads, 2 * dim)]
    tensors = [torch.randn(*shape, generator=generator).to(row.device, row.dtype) for shape in shapes]
    lam = torch.tensor(0.3, device=row.device)
    if row.what == "train":
        for tensor in tensors:
            tensor.requires_grad_()

    def run() -> None:
        with torch.set_grad_enabled(row.what == "train"):
            out = way(*tensors, lam if way is not _naive else lam.to(row.dtype))
        if row.what == "train":
            torch.autograd.grad(out.sum(), tensors)
        if row.device == "cuda":
            torch.cuda.synchronize()

    return run


def measure(row: Row, seconds: float, rounds: int = 7) -> Dict[str, float]:
    """Returns the median time of every way in seconds. Takes about `seconds`, and at least one round.

    >>> times = diffattn.bench.measure(diffattn.bench.Row("forward", 64, torch.float32, "cpu"), seconds=0.1)
    >>> len(times)
    4
    """
    runners = {name: _runner(row, way) for name, way in ways(row).items()}
    times: Dict[str, List[float]] = {name: [] for name in runners}
    end = time.perf_counter() + seconds
    for step in range(rounds + 1):
        for name, run in runners.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
        if time.perf_counter() > end and step > 0:
            break
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}  # the first is a warm-up


def rows_of(device: str, lengths: Sequence[int], types: Sequence[torch.dtype]) -> List[Row]:
    """Returns the rows of the table, quick ones first.

    >>> len(diffattn.bench.rows_of("cpu", [128, 256], [torch.float32]))
    6
    """
    return [Row(what, seq, dtype, device) for seq in sorted(lengths) for dtype in types
            for what in ("decode", "forward", "train")]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Prints the table.

    >>> diffattn.bench.main(["--seq", "64", "--dtype", "float32", "--seconds", "1"])    # doctest: +ELLIPSIS
    diffattn ...
    """
    parser = argparse.ArgumentParser(prog="python -m diffattn.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32,bfloat16", help="types, separated by commas")
    parser.add_argument("--seq", help="lengths, separated by commas")
    parser.add_argument("--seconds", type=float, default=50.0, help="time for the table (default 50)")
    options = parser.parse_args(arguments)
    lengths = [int(one) for one in (options.seq or ("512,1024" if options.device == "cpu" else "2048,8192")).split(",")]
    rows = rows_of(options.device, lengths, [getattr(torch, name) for name in options.dtype.split(",")])
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"diffattn {diffattn.__version__}, torch {torch.__version__}, {where}; batch 1, 8 heads of 64, causal; ms")
    names = list(ways(rows[0]))
    print(f"{'':28s}" + "".join(f"{name:>20s}" for name in names) + f"{'ratio':>9s}")
    end = time.perf_counter() + options.seconds
    for i, row in enumerate(rows):
        left = end - time.perf_counter()
        if left <= 0:
            print(f"(left out for lack of time: {', '.join(rest.title() for rest in rows[i:])})")
            break
        times = measure(row, left / (len(rows) - i))
        ratio = min(times[name] for name in names if name != FUSED) / times[FUSED]
        print(f"{row.title():28s}" + "".join(f"{times[name] * 1e3:20.2f}" for name in names) + f"{ratio:7.2f} x",
              flush=True)
    print("ratio: the fastest other way to diffattn")


if __name__ == "__main__":
    main(sys.argv[1:])
