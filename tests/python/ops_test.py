# SPDX-License-Identifier: Apache-2.0
"""Tests torch.ops.diffattn.* from Python: registration, gradients, torch.compile, error messages."""
import os
import subprocess
import sys
import unittest

import torch
from torch.library import opcheck

torch.ops.load_library(os.environ["DIFFATTN_LIBRARY"])
ops = torch.ops.diffattn


def inputs(dtype=torch.float64, requires_grad=True, seq=7):
    generator = torch.Generator().manual_seed(5)

    def make(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=dtype).requires_grad_(requires_grad)

    return [make(2, seq, 4, 8), make(2, seq, 4, 8), make(2, seq, 2, 8), make(2, seq, 2, 8),
            make(2, seq, 2, 16), make(2, seq, 4)]


def option_sets():
    weight = torch.randn(16, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, 7, 7, dtype=torch.float64, requires_grad=True)
    return [{}, {"causal": True}, {"window": 3, "scale": 0.3, "scale2": 0.7},
            {"window_left": 1, "window_right": 2}, {"window_right": 3},
            {"norm_eps": 1e-5, "norm_weight": weight, "out_scale": 0.8},
            {"mask": bias}, {"mask": torch.rand(7, 7) > 0.4},
            {"key_lengths": torch.tensor([3, 7]), "key_starts": torch.tensor([1, 0])}]


def inputs_that_share(**options):
    """Returns inputs whose heads share noise heads: 4 heads, 2 noise heads, 1 kv head."""
    q1, q2, k1, k2, v, lam = (t.detach() for t in inputs(**options))
    shared = (q1, q2[:, :, :2], k1[:, :, :1], k2[:, :, :1], v[:, :, :1], lam)
    return [t.clone().requires_grad_(options.get("requires_grad", True)) for t in shared]


def with_copies(tensors):
    """Returns the inputs with a copy of the noise head for each head."""
    q1, q2, *rest = tensors
    return [q1, q2.repeat_interleave(q1.shape[-2] // q2.shape[-2], -2), *rest]


class Registration(unittest.TestCase):
    def test_opcheck(self):
        for options in option_sets():
            opcheck(ops.attention_forward.default, inputs(), options)
        opcheck(ops.attention.default, inputs(), {"causal": True, "norm_eps": 1e-5})
        for q1, q2, k1, k2, v, lam in (inputs(), inputs_that_share()):
            opcheck(ops.attention_stats.default, (q1, q2, k1, k2, lam), {"causal": True})
            opcheck(ops.attention_map.default, (q1, q2, k1, k2, lam, 0, 7, 0, 7, 3, 7),
                    {"causal": True})
            opcheck(ops.decode.default, (q1, q2, k1, k2, v, lam),
                    {"key_lengths": torch.tensor([7, 7])})

    def test_opcheck_of_shared_noise_heads(self):
        for options in option_sets():
            opcheck(ops.attention_forward.default, inputs_that_share(), options)
        opcheck(ops.attention.default, inputs_that_share(), {"causal": True, "norm_eps": 1e-5})
        # The mask of the last set differs between heads, so the operator copies the noise heads.
        opcheck(ops.attention.default, inputs_that_share(), {"mask": torch.rand(4, 7, 7) > 0.4})

    def test_opcheck_of_saved_outputs(self):
        for make in (inputs, inputs_that_share):
            for dtype in (torch.float32, torch.bfloat16):
                for saved in ({}, {"save_o": True}, {"save_outputs": True}):
                    for requires_grad in (False, True):
                        tensors = make(dtype=dtype, requires_grad=requires_grad)
                        opcheck(ops.attention_forward.default, tensors, {"norm_eps": 1e-5, **saved})

    def test_the_backward_of_a_head_norm_reads_o(self):
        def sizes(dtype=torch.float32, requires_grad=True, **options):
            made = ops.attention_forward(*inputs(dtype=dtype, requires_grad=requires_grad), **options)
            return [tuple(t.shape) for t in made[3:]]

        saved, nothing = (2, 7, 4, 16), (0,)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            self.assertEqual(sizes(dtype, norm_eps=1e-5), [saved, nothing])
            self.assertEqual(sizes(dtype), [nothing, nothing])
            self.assertEqual(sizes(dtype, requires_grad=False, norm_eps=1e-5), [nothing, nothing])
        self.assertEqual(sizes(requires_grad=False, save_o=True), [saved, nothing])
        self.assertEqual(sizes(save_outputs=True, norm_eps=1e-5), [saved, saved])
        self.assertEqual(sizes(torch.float64, norm_eps=1e-5), [nothing, nothing])

    def test_gradcheck(self):
        for options in option_sets():
            tensors = [t for t in options.values()
                       if isinstance(t, torch.Tensor) and t.requires_grad]
            self.assertTrue(torch.autograd.gradcheck(
                lambda *t, options=options: ops.attention(*t[:6], **options),
                (*inputs(), *tensors), atol=1e-7, rtol=1e-6))

    def test_compile_with_changing_lengths(self):
        for make, options in ((inputs, {}), (inputs_that_share, {}),
                              (inputs_that_share, {"norm_eps": 1e-5})):
            compiled = torch.compile(lambda *t, options=options: ops.attention(*t, causal=True, **options),
                                     backend="aot_eager", fullgraph=True, dynamic=True)
            for dtype in (torch.float64, torch.float32):
                for seq in (4, 7, 11):
                    tensors = make(dtype=dtype, seq=seq)
                    want = ops.attention(*tensors, causal=True, **options)
                    got = compiled(*tensors)
                    self.assertTrue(torch.equal(got, want))
                    for left, right in zip(torch.autograd.grad(got.sin().sum(), tensors),
                                           torch.autograd.grad(want.sin().sum(), tensors)):
                        self.assertTrue(torch.equal(left, right))


class SharedNoiseHeads(unittest.TestCase):
    def test_export(self):
        class Attention(torch.nn.Module):
            def forward(self, *tensors):
                return ops.attention(*tensors, causal=True, norm_eps=1e-5)

        length = torch.export.Dim("length", min=2, max=512)
        tensors = tuple(inputs_that_share(dtype=torch.float32, requires_grad=False))
        program = torch.export.export(Attention(), tensors, dynamic_shapes=(({1: length},) * 6,))
        for seq in (7, 19):
            tensors = inputs_that_share(dtype=torch.float32, requires_grad=False, seq=seq)
            self.assertTrue(torch.equal(program.module()(*tensors), Attention()(*tensors)))

    def test_autocast(self):
        tensors = inputs_that_share(dtype=torch.float32)
        rounded = [t.detach().to(torch.bfloat16).requires_grad_() for t in tensors[:5]] + tensors[5:]
        q1, q2, k1, k2, v, lam = tensors
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = ops.attention(*tensors, causal=True, norm_eps=1e-5)
            stats = ops.attention_stats(q1, q2, k1, k2, lam)
        want = ops.attention(*rounded, causal=True, norm_eps=1e-5)
        self.assertTrue(torch.equal(out, want))
        self.assertTrue(torch.equal(stats, ops.attention_stats(*rounded[:4], lam)))
        for left, right in zip(torch.autograd.grad(out.sum(), tensors), torch.autograd.grad(want.sum(), rounded)):
            self.assertTrue(torch.equal(left, right.to(left.dtype)))

    def test_every_operator_agrees_with_copies(self):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            for seq in (1, 3, 4, 13, 40):
                shared = inputs_that_share(dtype=dtype, requires_grad=False, seq=seq)
                copies = with_copies(shared)
                q1, q2, k1, k2, v, lam = shared
                for options in ({"causal": True}, {"norm_eps": 1e-5}):
                    self.assertTrue(torch.equal(ops.attention(*shared, **options), ops.attention(*copies, **options)))
                self.assertTrue(torch.equal(ops.decode(*shared), ops.decode(*copies)))
                repeated = copies[1]
                self.assertTrue(torch.equal(ops.attention_stats(q1, q2, k1, k2, lam),
                                            ops.attention_stats(q1, repeated, k1, k2, lam)))
                grid = (0, seq, 0, seq, 1, seq)
                self.assertTrue(torch.equal(ops.attention_map(q1, q2, k1, k2, lam, *grid),
                                            ops.attention_map(q1, repeated, k1, k2, lam, *grid)))

    def test_gradcheck(self):
        for options in option_sets():
            tensors = [t for t in options.values()
                       if isinstance(t, torch.Tensor) and t.requires_grad]
            self.assertTrue(torch.autograd.gradcheck(
                lambda *t, options=options: ops.attention(*t[:6], **options),
                (*inputs_that_share(), *tensors), atol=1e-7, rtol=1e-6, fast_mode=True))

    def test_gradients_agree_with_copies(self):
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            for seq in (1, 3, 4, 13, 40):
                tensors = inputs_that_share(dtype=dtype, seq=seq)
                gradients = [torch.autograd.grad(ops.attention(*given, causal=True, norm_eps=1e-5).sin().sum(), tensors)
                             for given in (tensors, with_copies(tensors))]
                for left, right in zip(*gradients):
                    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


class Windows(unittest.TestCase):
    def test_number_and_bounds_agree(self):
        tensors = inputs(dtype=torch.float32, requires_grad=False, seq=40)
        for columns in (1, 7, 40):
            self.assertTrue(torch.equal(ops.attention(*tensors, window=columns),
                                        ops.attention(*tensors, window_left=columns - 1,
                                                      window_right=0)))

    def test_causal_hides_the_right_side(self):
        tensors = inputs(requires_grad=False)
        self.assertTrue(torch.equal(
            ops.attention(*tensors, causal=True, window_left=2, window_right=3),
            ops.attention(*tensors, window=3)))

    def test_operators_share_the_window(self):
        q1, q2, k1, k2, v, lam = inputs(requires_grad=False)
        window = {"window_left": 1, "window_right": 2}
        # Row m sees the columns m - 1 to m + 2 of 7.
        seen = ops.attention_stats(q1, q2, k1, k2, lam, **window)[0, :, 0, 0]
        self.assertEqual(seen.tolist(), [3, 4, 4, 4, 4, 3, 2])
        cells = ops.attention_map(q1, q2, k1, k2, lam, 0, 7, 0, 7, 7, 7, **window)[0, 0, 0]
        self.assertEqual((cells > 0).sum(-1).tolist(), [3, 4, 4, 4, 4, 3, 2])
        # Decoding is causal: the last row sees its own column and the one before.
        last = (q1[:, -1:], q2[:, -1:], k1, k2, v, lam[:, -1:])
        torch.testing.assert_close(ops.decode(*last, **window),
                                   ops.attention(q1, q2, k1, k2, v, lam, **window)[:, -1:])

    def test_number_and_bounds_exclude_each_other(self):
        with self.assertRaisesRegex(RuntimeError, "'window_right'.*window = 3.*got 2"):
            ops.attention(*inputs(), window=3, window_right=2)


class Threads(unittest.TestCase):
    def test_kernels_run_on_torch_threads(self):
        # Runs in a separate process, where only the operator works in parallel.
        program = """
import os, torch
torch.ops.load_library(os.environ["DIFFATTN_LIBRARY"])
torch.set_num_threads(3)
q = torch.ones(1, 256, 4, 8)
before = len(os.listdir("/proc/self/task"))
torch.ops.diffattn.attention(q, q, q, q, q, torch.tensor(0.5), causal=True)
print(len(os.listdir("/proc/self/task")) - before)
"""
        with open("/proc/cpuinfo") as file:
            if " avx2 " not in file.read():
                self.skipTest("skipped: no AVX2 here, and the reference has one thread")
        result = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(int(result.stdout), 2)


    def test_results_do_not_depend_on_the_number_of_threads(self):
        before = torch.get_num_threads()
        try:
            for dtype in (torch.float32, torch.bfloat16):
                runs = []
                for threads in (1, 2, 3, 5, 8):
                    torch.set_num_threads(threads)
                    tensors = inputs(dtype=dtype, seq=150)
                    out = ops.attention(*tensors, causal=True, norm_eps=1e-5)
                    runs.append([out, *torch.autograd.grad(out.sin().sum(), tensors)])
                for run in runs[1:]:
                    for got, want in zip(run, runs[0]):
                        self.assertTrue(torch.equal(got, want), dtype)
        finally:
            torch.set_num_threads(before)


class Errors(unittest.TestCase):
    def test_same_text_as_from_cpp(self):
        q1, q2, k1, k2, v, lam = inputs()
        with self.assertRaises(RuntimeError) as caught:
            ops.attention(q1, q2, k1, k2[:, :3], v, lam)
        self.assertEqual(str(caught.exception),
                         "diffattn: argument 'k2': expected shape [2, 7, 2, 8] like k1, got shape "
                         "[2, 3, 2, 8]")
        with self.assertRaises(RuntimeError) as caught:
            ops.attention(q1, q2, k1, k2, v, lam, key_lengths=torch.tensor([3, 9]))
        self.assertEqual(str(caught.exception),
                         "diffattn: argument 'key_lengths': expected 0 <= key_lengths[b] <= N = 7, "
                         "got 9 at index 1")

    def test_double_backward_is_refused(self):
        tensors = inputs()
        grad, = torch.autograd.grad(ops.attention(*tensors).sum(), tensors[0], create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "double backward"):
            grad.sum().backward()


@unittest.skipUnless(torch.cuda.is_available(), "skipped: no GPU")
class Cuda(unittest.TestCase):
    """The same tests on a GPU. float64 uses the composed path there, other dtypes use fused kernels."""

    @staticmethod
    def on_gpu(tensors, dtype=None):
        """Converts the activations to `dtype`; lambda stays unchanged."""
        return [t.detach().to(device="cuda", dtype=dtype if dtype and t.dim() == 4 else t.dtype)
                .requires_grad_(t.requires_grad) for t in tensors]

    @staticmethod
    def options_on_gpu():
        return [{name: value.detach().cuda().requires_grad_(value.requires_grad)
                 if isinstance(value, torch.Tensor) else value
                 for name, value in options.items()} for options in option_sets()]

    def test_opcheck(self):
        for options in self.options_on_gpu():
            opcheck(ops.attention_forward.default, self.on_gpu(inputs(dtype=torch.float32)), options)
        for dtype in (torch.float64, torch.float32):
            q1, q2, k1, k2, v, lam = self.on_gpu(inputs(dtype=dtype))
            opcheck(ops.attention_stats.default, (q1, q2, k1, k2, lam), {"causal": True})
            opcheck(ops.attention_map.default, (q1, q2, k1, k2, lam, 0, 7, 0, 7, 3, 7),
                    {"causal": True})
            opcheck(ops.decode.default, (q1, q2, k1, k2, v, lam),
                    {"key_lengths": torch.tensor([7, 7], device="cuda")})

    def test_gradcheck(self):
        for options in self.options_on_gpu():
            tensors = [t for t in options.values()
                       if isinstance(t, torch.Tensor) and t.requires_grad]
            # A full Jacobian takes a thousand launches per input; the CPU tests cover it.
            self.assertTrue(torch.autograd.gradcheck(
                lambda *t, options=options: ops.attention(*t[:6], **options),
                (*self.on_gpu(inputs()), *tensors), atol=1e-6, rtol=1e-5, nondet_tol=1e-12,
                fast_mode=True))

    def test_compile_with_changing_lengths(self):
        compiled = torch.compile(lambda *t: ops.attention(*t, causal=True), backend="aot_eager",
                                 fullgraph=True, dynamic=True)
        for seq in (4, 7, 11):
            tensors = self.on_gpu(inputs(seq=seq), torch.bfloat16)
            torch.testing.assert_close(compiled(*tensors), ops.attention(*tensors, causal=True))
            compiled(*tensors).sum().backward()
            self.assertTrue(torch.isfinite(tensors[0].grad).all())

    def test_graph_capture(self):
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        tensors = self.on_gpu(inputs(dtype=torch.float32, seq=40), torch.bfloat16)
        q1, q2, k1, k2, _, lam = tensors

        def step():
            out = ops.attention(*tensors, causal=True, norm_eps=1e-5)
            stats = ops.attention_stats(q1, q2, k1, k2, lam, causal=True)
            return [out, stats, *torch.autograd.grad(out.float().sum(), tensors),
                    *torch.autograd.grad(stats.sum(), (q1, q2, k1, k2, lam)),
                    ops.attention_map(q1, q2, k1, k2, lam, 0, 40, 0, 40, 5, 5, causal=True)]

        # Detach: a living autograd graph keeps nodes that are bound to the stream of their creation.
        want = [t.detach() for t in step()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()  # torch requires a warm-up on a side stream
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = step()
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip(got, want):
            self.assertTrue(torch.equal(a, b))

    def test_statistics_take_memory_for_rows_only(self):
        tensors = [torch.randn(1, 8192, 2, 64, device="cuda", dtype=torch.bfloat16)
                   .requires_grad_(True) for _ in range(4)]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        ops.attention_stats(*tensors, torch.tensor(0.5, device="cuda"), causal=True).sum().backward()
        ops.attention_map(*tensors, torch.tensor(0.5, device="cuda"), 0, 8192, 0, 8192, 64, 64)
        used = torch.cuda.max_memory_allocated() - before
        self.assertLess(used, 64 << 20)  # a single map would take 512 MiB

    def test_current_device_stays(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("skipped: one GPU")
        tensors = [t.to("cuda:1") for t in inputs(dtype=torch.float32, requires_grad=False)]
        with torch.cuda.device(0):
            out = ops.attention(*tensors, causal=True)
            self.assertEqual(torch.cuda.current_device(), 0)
        want = ops.attention(*[t.cpu() for t in tensors], causal=True)
        torch.testing.assert_close(out.cpu(), want, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
