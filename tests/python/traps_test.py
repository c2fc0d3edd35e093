# SPDX-License-Identifier: Apache-2.0
"""Tests that wrong or ambiguous calls say so: windows, gradients of decode, option names, kinds of tensors."""
import subprocess
import sys
import tempfile
import unittest

import torch

import diffattn


def inputs(seq=9, heads=4, kv_heads=2, batch=2):
    generator = torch.Generator().manual_seed(3)

    def make(*sizes):
        return torch.randn(*sizes, generator=generator)

    return [make(batch, seq, heads, 8), make(batch, seq, heads, 8), make(batch, seq, kv_heads, 8),
            make(batch, seq, kv_heads, 8), make(batch, seq, kv_heads, 16), make(heads)]


def band(seq, left, right):
    """A mask that shows `left` columns before the row's own and `right` after it; -1 is no bound."""
    distance = torch.arange(seq)[None, :] - torch.arange(seq)[:, None]
    return (distance >= (-left if left >= 0 else -seq)) & (distance <= (right if right >= 0 else seq))


class Windows(unittest.TestCase):
    def test_pairs_and_numbers(self):
        tensors = inputs()
        for window, left, right in ((3, 2, 0), ((2, 0), 2, 0), ((2, 3), 2, 3), ((0, -1), 0, -1), ((-1, 2), -1, 2),
                                    ((-1, -1), -1, -1), ([1, 1], 1, 1)):
            want = diffattn.attention(*tensors, mask=band(9, left, right))
            torch.testing.assert_close(diffattn.attention(*tensors, window=window), want)
            if isinstance(window, tuple):
                torch.testing.assert_close(diffattn.attention(*tensors, window=window, causal=False), want)
            causal = diffattn.attention(*tensors, mask=band(9, left, 0))
            torch.testing.assert_close(diffattn.attention(*tensors, window=window, causal=True), causal)
            stats = diffattn.attention_stats(*tensors[:4], 0.3, window=window)["visible"]
            self.assertEqual(stats[0, :, 0].tolist(), band(9, left, right).sum(-1).tolist())
            maps = diffattn.attention_map(*tensors[:4], 0.3, window=window)
            self.assertTrue(((maps[0, 0, 0] > 0) == band(9, left, right)).all())

    def test_decode_sees_nothing_later(self):
        q1, q2, k1, k2, v, lam = inputs()
        newest = [t[:, -2:].contiguous() for t in (q1, q2)]
        want = diffattn.attention(*newest, k1, k2, v, lam, causal=True, window=(3, 0))
        for window in (4, (3, 0), (3, 5)):
            torch.testing.assert_close(diffattn.decode(*newest, k1, k2, v, lam, window=window), want)

    def test_a_number_with_causal_false_is_refused(self):
        tensors = inputs()
        for call in (lambda: diffattn.attention(*tensors, causal=False, window=4),
                     lambda: diffattn.attention_stats(*tensors[:4], 0.3, causal=False, window=4),
                     lambda: diffattn.attention_map(*tensors[:4], 0.3, causal=False, window=4),
                     lambda: diffattn.nn.DiffAttention(32, 2, causal=False, window=4)):
            with self.assertRaisesRegex(ValueError, r"'window': .*window=\(3, -1\).*window=\(3, 3\).*leave causal out"):
                call()
        for wrong, kind in (((1, 2, 3), ValueError), ((-2, 0), ValueError), ("4", TypeError), (True, TypeError)):
            with self.assertRaisesRegex(kind, "'window': expected a number or a pair"):
                diffattn.attention(*tensors, window=wrong)

    def test_compiled(self):
        tensors = inputs()
        for window in (3, (2, 3)):
            call = torch.compile(lambda *t, w=window: diffattn.attention(*t, window=w), backend="eager", fullgraph=True)
            torch.testing.assert_close(call(*tensors), diffattn.attention(*tensors, window=window))


class Gradients(unittest.TestCase):
    def test_decode_refuses_what_requires_them(self):
        q1, q2, k1, k2, v, lam = inputs()
        for name, index in (("q1", 0), ("v", 4), ("lam", 5)):
            tensors = [q1[:, -1:], q2[:, -1:], k1, k2, v, lam]
            tensors[index] = tensors[index].clone().requires_grad_()
            with self.assertRaisesRegex(RuntimeError, f"'{name}': expected a tensor without gradients.*no_grad"):
                diffattn.decode(*tensors)
            with torch.no_grad():
                diffattn.decode(*tensors)


class Names(unittest.TestCase):
    def test_wrong_options_are_named(self):
        q1, q2, k1, k2, v, lam = inputs()
        for function in (diffattn.attention_stats, diffattn.attention_map):
            with self.assertRaisesRegex(TypeError, f"{function.__name__}.*'casual'"):
                function(q1, q2, k1, k2, lam, casual=True)
        with self.assertRaisesRegex(TypeError, "'casual'"):
            diffattn.attention(q1, q2, k1, k2, v, lam, casual=True)

    def test_messages_say_lam(self):
        q1, q2, k1, k2, v, _ = inputs()
        calls = (lambda lam: diffattn.attention(q1, q2, k1, k2, v, lam),
                 lambda lam: diffattn.decode(q1, q2, k1, k2, v, lam),
                 lambda lam: diffattn.attention_stats(q1, q2, k1, k2, lam),
                 lambda lam: diffattn.attention_map(q1, q2, k1, k2, lam))
        for call in calls:
            for lam in (torch.ones(3), torch.ones(4, dtype=torch.int64)):
                with self.assertRaisesRegex(RuntimeError, "argument 'lam': expected") as caught:
                    call(lam)
                self.assertNotIn("lambda", str(caught.exception))

    def test_everything_is_findable(self):
        for name in ("hf", "convert", "parallel", "analyze", "load", "train", "nn", "Generator"):
            self.assertIn(name, dir(diffattn))
            self.assertIn(name, diffattn.__all__)
        with self.assertRaisesRegex(AttributeError, "no attribute 'atention'"):
            getattr(diffattn, "atention")  # noqa: B009


class Kinds(unittest.TestCase):
    def test_nested_tensors(self):
        _, q2, k1, k2, v, lam = inputs()
        nested = torch.nested.nested_tensor([torch.randn(3, 4, 8), torch.randn(5, 4, 8)], layout=torch.jagged)
        with self.assertRaisesRegex(TypeError, r"'q1': .*nested.*q1.values\(\).*cu_seqlens_q"):
            diffattn.attention(nested, q2, k1, k2, v, lam)


DTENSOR_PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import diffattn
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
tensors, weight, lams, mask = torch.load(f"{folder}/data.pt")
for placement in (Shard(0), Shard(2), Replicate()):
    for lam in lams:
        leaves = [t.clone().requires_grad_() for t in (*tensors, lam, weight, mask)]
        want = diffattn.attention(*leaves[:6], norm_weight=leaves[6], mask=leaves[7], norm_eps=1e-5, window=(3, 2))
        want_grads = torch.autograd.grad(want.sin().sum(), leaves)
        leaves = [t.detach().clone().requires_grad_() for t in leaves]
        parts = [distribute_tensor(t.detach(), mesh, [placement]).requires_grad_() for t in leaves[:5]]
        got = diffattn.attention(*parts, leaves[5], norm_weight=leaves[6], mask=leaves[7], norm_eps=1e-5, window=(3, 2))
        assert isinstance(got, DTensor) and got.placements == (placement,), got.placements
        grads = torch.autograd.grad(got.sin().full_tensor().sum(), [*parts, *leaves[5:]])
        grads = [g.full_tensor() if isinstance(g, DTensor) else g for g in grads]
        torch.testing.assert_close(got.full_tensor(), want)
        for a, b in zip(grads, want_grads):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
parts = [distribute_tensor(t, mesh, [Shard(1)]) for t in tensors]
try:
    diffattn.attention(*parts, 0.3)
except TypeError as error:
    print(error)
try:
    diffattn.attention(parts[0], *tensors[1:], 0.3)
except TypeError as error:
    print(error)
try:
    diffattn.decode(*parts, 0.3)
except TypeError as error:
    print(error)
dist.barrier()
sys.stdout.flush()
os._exit(0)  # torch's own threads may abort an interpreter that ends after collectives of DTensors
"""


class Sharded(unittest.TestCase):
    def test_dtensors_by_batch_and_by_heads(self):
        *tensors, lam = inputs()
        torch.manual_seed(5)
        lams = [torch.tensor(0.3), lam, torch.rand(2, 9, 4)]
        with tempfile.TemporaryDirectory() as folder:
            torch.save((tensors, torch.rand(16), lams, torch.randn(2, 4, 9, 9)), f"{folder}/data.pt")
            running = [subprocess.Popen([sys.executable, "-c", DTENSOR_PROGRAM, str(rank), folder], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
            for process in running:
                out, error = process.communicate(timeout=600)
                self.assertEqual(process.returncode, 0, error)
                self.assertRegex(out, r"'q1'.*Shard\(2\) \(the heads\), got S.*redistribute")
                self.assertRegex(out, "'q2': expected a DTensor placed as q1 is.*got an ordinary tensor")
                self.assertRegex(out, r"'q1': expected a local tensor, got a DTensor.*q1.to_local\(\)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
