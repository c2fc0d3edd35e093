# SPDX-License-Identifier: Apache-2.0
"""Compares diffattn.parallel.attention, and modules inside DDP and FSDP2, over 2 and 4 processes with one process."""
import datetime
import itertools
import os
import unittest

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from process_jobs import free_port  # skips the test if this torch has no torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import diffattn
from diffattn import _full, parallel

HEADS, KV_HEADS, D = 4, 4, 16
MASKS = [dict(), dict(causal=True), dict(window=5), dict(causal=True, key_lengths=torch.tensor([29, 17])),
         dict(causal=True, key_starts=torch.tensor([0, 3]))]
TWO_SIDES = [dict(window=(4, 3)), dict(window=(3, -1)), dict(window=(-1, 6), key_lengths=torch.tensor([29, 17])),
             dict(causal=True, window=(7, 2))]
PACKED = [dict(), dict(causal=True), dict(window=5), dict(window=(4, 3)), dict(window=(3, -1)), dict(window=(-1, 2))]
NORM = dict(norm_eps=1e-5, out_scale=0.8)
ZIGZAG = "zigzag"  # with the number of rows


def inputs(rows, kv_heads=KV_HEADS, lam="head", batch=(2,)):
    """Returns q1, q2, k1, k2, v, lambda, the norm's weight and a gradient. Packed documents have no batch: ()."""
    torch.manual_seed(4)
    sizes = [(HEADS, D), (HEADS, D), (kv_heads, D), (kv_heads, D), (kv_heads, 2 * D)]
    tensors = [torch.randn(*batch, rows, heads, width) for heads, width in sizes]
    # Near 1, both maps of a row with one column cancel, and the norm enlarges rounding errors.
    lambdas = {"head": torch.rand(HEADS), "token": 0.8 * torch.rand(*batch, rows, HEADS), "number": torch.tensor(0.3),
               "list of one": torch.tensor([0.3])}
    return tensors, lambdas[lam], torch.rand(2 * D) + 0.5, torch.randn(*batch, rows, HEADS, 2 * D)


def packed(rows, mask):
    """Returns the mask with documents of several lengths, one of them empty."""
    offsets = torch.tensor(sorted([0, 3, 3, 4, rows // 2 + 1, rows - 1, rows]), dtype=torch.int32)
    return dict(mask, cu_seqlens_q=offsets, cu_seqlens_k=offsets)


def whole(rows, mask, **more):
    """Returns the result and the gradients of q, k, v, lambda and the norm's weight in one process."""
    tensors, lam, weight, dout = inputs(rows, **more)
    leaves = [tensor.requires_grad_() for tensor in (*tensors, lam, weight)]
    out = diffattn.attention(*leaves[:6], norm_weight=leaves[6], **NORM, **mask)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def shared(rank, lengths, mask, method, **more):
    """The same from this rank's rows; the parts of all ranks are put together. `lengths` is ZIGZAG for that layout."""
    size, zigzag = dist.get_world_size(), lengths[0] == ZIGZAG
    count = lengths[1] if zigzag else sum(lengths)
    tensors, lam, weight, dout = inputs(count, **more)
    rows = torch.arange(sum(lengths[:rank]), sum(lengths[:rank + 1])) if not zigzag else parallel.rows(count, "zigzag")
    axis = dout.dim() - 3
    lam = lam.index_select(axis, rows) if lam.dim() > 1 else lam
    leaves = [tensor.clone().requires_grad_()
              for tensor in (*(tensor.index_select(axis, rows) for tensor in tensors), lam, weight)]
    out = parallel.attention(*leaves[:6], norm_weight=leaves[6], method=method,
                             layout="zigzag" if zigzag else "consecutive", **NORM, **mask)
    parts = [out.detach(), *torch.autograd.grad(out, leaves, dout.index_select(axis, rows))]
    joined = []
    for part, leaf in zip(parts, [out, *leaves]):
        if leaf.dim() > 1:  # rows
            everybody = [None] * size
            dist.all_gather_object(everybody, (rows, part))
            order = torch.cat([indices for indices, _ in everybody]).argsort()
            joined.append(torch.cat([piece for _, piece in everybody], dim=axis).index_select(axis, order))
        else:
            dist.all_reduce(part)
            joined.append(part)
    return joined


def two_layers():
    torch.manual_seed(2)
    return torch.nn.Sequential(diffattn.nn.DiffAttention(32, 2, rotary="half"),
                               diffattn.nn.DiffAttention(32, 4, kind="v2", lambda_kind="token"))


def check_wrappers(rank, size, failures):
    """Compares the gradients of modules inside DDP and FSDP2, which divide the batch, with those of one process."""
    torch.manual_seed(3)
    x = torch.randn(2 * size, 11, 32)
    alone = two_layers()
    alone(x).square().mean().backward()
    want = {name: parameter.grad for name, parameter in alone.named_parameters()}
    sharded = two_layers()
    for layer in sharded:
        fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
    wrapped = {"DDP": torch.nn.parallel.DistributedDataParallel(two_layers()), "FSDP2": fully_shard(sharded)}
    for kind, model in wrapped.items():
        model(x[2 * rank:2 * rank + 2]).square().mean().backward()
        for name, parameter in model.named_parameters():
            got, exact = parameter.grad, want[name.removeprefix("module.")]
            got = got.full_tensor() if hasattr(got, "full_tensor") else got
            error = (got - exact).abs().max().item() / exact.abs().max().item()
            if not error <= 1e-5:
                failures.put(f"{kind}, {size} ranks: the gradient of {name} is off by {error:.1e}")


def check(rank, size, port, failures):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=600))
    check_wrappers(rank, size, failures)
    lengths = {2: [[16, 16], [20, 9], [29, 0]], 4: [[8, 8, 8, 8], [7, 1, 20, 1]]}[size]
    cases = [(split, mask, method, {}) for split, mask, method in itertools.product(lengths, MASKS, ("heads", "keys"))]
    cases += [(lengths[1], dict(causal=True), method, dict(lam=lam))
              for method in ("heads", "keys") for lam in ("token", "number", "list of one")]
    cases += [(lengths[1], dict(causal=True), None, dict(kv_heads=1)),
              (lengths[1], dict(causal=True), None, dict(kv_heads=2))]
    layouts = [[ZIGZAG, 32], [ZIGZAG, 29], [ZIGZAG, 5]]  # the last leaves ranges empty
    cases += [(layout, mask, method, {})
              for layout, mask, method in itertools.product(layouts, MASKS, ("heads", "keys"))
              if layout[1] > 5 or "key_lengths" not in mask]
    cases += [(layouts[1], dict(causal=True), method, dict(lam="token")) for method in ("heads", "keys")]
    cases += [(split, mask, method, {})
              for split, mask, method in itertools.product((lengths[1], layouts[1]), TWO_SIDES, ("heads", "keys"))]
    cases += [(split, packed(29, mask), method, dict(batch=(), lam=lam))
              for split, method in itertools.product((lengths[1], layouts[1]), ("heads", "keys"))
              for mask, lam in [*((mask, "head") for mask in PACKED), (dict(causal=True), "token")]]
    cases += [(split, packed(count, dict(causal=True)), method, dict(batch=()))  # ranks and ranges without rows
              for split, count in (([29] + [0] * (size - 1), 29), (layouts[2], 5)) for method in ("heads", "keys")]
    for split, mask, method, more in cases:
        count = split[1] if split[0] == ZIGZAG else sum(split)
        got, want = shared(rank, split, mask, method, **more), whole(count, mask, **more)
        for name, mine, exact in zip(("out", "dq1", "dq2", "dk1", "dk2", "dv", "dlambda", "dweight"), got, want):
            error = (mine - exact).abs().max().item() / max(1.0, exact.abs().max().item())
            if not error <= 2e-6:
                failures.put(f"{size} ranks, {split}, {mask}, {method}, {more}: {name} is off by {error:.1e}")
    if size == 4:
        try:
            shared(rank, lengths[0], {}, "heads", kv_heads=2)
            failures.put("4 ranks took 2 kv heads")
        except ValueError as error:
            if "4 ranks do not divide 2 and 4 heads" not in str(error):
                failures.put(str(error))
    try:
        parallel.attention(*inputs(3 + 2 * rank)[0], 0.3, layout="zigzag")
        failures.put("zigzag took other rows")
    except ValueError as error:
        if "diffattn.parallel.rows returns them" not in str(error):
            failures.put(str(error))
    q1, *others = inputs(4, batch=())[0]
    offsets = torch.tensor([0, 4 * size], dtype=torch.int32)
    for wrong, text in ((dict(cu_seqlens_q=offsets), "argument 'cu_seqlens_k': expected the same offsets as"),
                        (dict(cu_seqlens_q=offsets - 1, cu_seqlens_k=offsets - 1), f"from 0 to {4 * size}, got "),
                        (dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets, key_lengths=offsets[1:]),
                         "expected neither key_starts nor key_lengths")):
        try:
            parallel.attention(q1, *others, 0.3, **wrong)
            failures.put(f"parallel.attention took {wrong}")
        except ValueError as error:
            if text not in str(error):
                failures.put(str(error))
    dist.barrier()
    # A thread of Gloo may hold a tensor of the last operation for a moment. If it lets go after the interpreter's end,
    # torch aborts, so the process ends without that.
    os._exit(0)


class Parallel(unittest.TestCase):
    maxDiff = None

    def test_ranges_are_those_of_training(self):
        _full.library()
        for tokens, size, zigzag in itertools.product((0, 1, 5, 29, 64), (1, 2, 3, 4), (False, True)):
            found = []
            for rank in range(size):
                ranges = parallel._ranges(tokens, rank, size, zigzag)
                flat = [end for one in ranges for end in one]
                self.assertEqual(flat, torch.ops.diffattn.token_ranges(tokens, rank, size, zigzag))
                found += [row for begin, end in ranges for row in range(begin, end)]
            self.assertEqual(sorted(found), list(range(tokens)), "every row belongs to one rank")

    def test_zigzag_divides_causal_work(self):
        for size in (2, 3, 4):
            pairs = [sum(end * (end + 1) // 2 - begin * (begin + 1) // 2
                         for begin, end in parallel._ranges(1024, rank, size, zigzag=True)) for rank in range(size)]
            self.assertLess(max(pairs) / min(pairs), 1.01)

    def test_wrong_layout(self):
        with self.assertRaisesRegex(ValueError, "argument 'layout': expected 'consecutive' or 'zigzag', got 'ring'"):
            parallel.rows(5, "ring")

    def run_with(self, size):
        port = free_port()
        failures = processes.get_context("fork").SimpleQueue()
        processes.start_processes(check, (size, port, failures), nprocs=size, start_method="fork")
        found = []
        while not failures.empty():
            found.append(failures.get())
        self.assertEqual(found, [])

    def test_two_ranks(self):
        self.run_with(2)

    def test_four_ranks(self):
        self.run_with(4)


if __name__ == "__main__":
    unittest.main()
