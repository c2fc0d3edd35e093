# SPDX-License-Identifier: Apache-2.0
"""Tests the package with torch's tools: compile, export, autocast, checkpoint, vmap, DDP.

Compares its modules with the published ones.
"""
import copy
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import diffattn

ops = torch.ops.diffattn
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "golden"
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def inputs(seq=9, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(3)

    def make(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=dtype).to(device).requires_grad_()

    return [make(2, seq, 4, 8), make(2, seq, 4, 8), make(2, seq, 2, 8), make(2, seq, 2, 8),
            make(2, seq, 2, 16), make(4)]


def gradients(out, tensors):
    return torch.autograd.grad(out.float().sin().sum(), tensors)


class Registration(unittest.TestCase):
    def test_opcheck_of_the_backward_operators(self):
        for device in DEVICES:
            q1, q2, k1, k2, v, lam = (t.detach() for t in inputs(dtype=torch.float64, device=device))
            options = dict(causal=True, norm_eps=1e-5)
            out, *saved = ops.attention_forward(q1, q2, k1, k2, v, lam, **options,
                                                save_outputs=True)
            opcheck(ops.attention_backward.default,
                    (torch.ones_like(out), q1, q2, k1, k2, v, lam, *saved, [True] * 6 + [False] * 2),
                    options)
            opcheck(ops.attention_recompute.default, (q1, q2, k1, k2, v, lam, *saved[:2]), options)
            stats = ops.attention_stats(q1, q2, k1, k2, lam, causal=True)
            opcheck(ops.attention_stats_backward.default,
                    (torch.ones_like(stats), q1, q2, k1, k2, lam, [True] * 5 + [False]),
                    dict(causal=True))

    def test_known_sums_give_the_same_output(self):
        for device in DEVICES:
            tensors = [t.detach() for t in inputs(device=device)]
            options = dict(causal=True, norm_eps=1e-5)
            out, lse1, lse2, o, _ = ops.attention_forward(*tensors, **options, save_outputs=True)
            again = ops.attention_recompute(*tensors, lse1, lse2, **options)
            self.assertTrue(torch.equal(again[0], out) and torch.equal(again[1], o))
            with self.assertRaisesRegex(RuntimeError, "lse2.*one number per head and row"):
                ops.attention_recompute(*tensors, lse1, lse2[:, :1], **options)
            meta = ops.attention_recompute(*(t.to("meta") for t in (*tensors, lse1, lse2)))
            self.assertEqual([t.shape for t in meta], [out.shape, o.shape])

    def test_schemas_stay_compatible(self):
        """New arguments may only be added at the end, with a default."""
        first = ("diffattn::attention(Tensor q1, Tensor q2, Tensor k1, Tensor k2, Tensor v, Tensor "
                 "lam, *, float? scale=None, float? scale2=None, bool causal=False, int? "
                 "window=None, Tensor? mask=None, Tensor? key_starts=None, Tensor? "
                 "key_lengths=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? "
                 "norm_weight=None, float? norm_eps=None, float out_scale=1.0) -> Tensor")
        now = ops.attention.default._schema
        self.assertTrue(now.is_backward_compatible_with(torch._C.parse_schema(first)))


class Transforms(unittest.TestCase):
    def test_compiled_for_any_length_once(self):
        graphs = []

        def backend(graph, examples):
            graphs.append(graph)
            return graph

        layer = diffattn.nn.preset("diffllama", 32, 4)
        compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
        for seq in (5, 9, 13):
            x = torch.randn(2, seq, 32)
            torch.testing.assert_close(compiled(x), layer(x))
        self.assertEqual(len(graphs), 1)

    def test_inductor(self):
        for device in DEVICES:
            tensors = inputs(device=device)

            def step(*t):
                return diffattn.attention(*t, causal=True, norm_eps=1e-5).tanh()

            compiled = torch.compile(step, fullgraph=True)
            got, want = compiled(*tensors), step(*tensors)
            torch.testing.assert_close(got, want)
            for a, b in zip(gradients(got, tensors), gradients(want, tensors)):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)

    def test_export_with_any_length(self):
        layer = diffattn.nn.preset("microsoft_v1", 32, 4).eval()
        length = torch.export.Dim("length", min=2, max=512)
        program = torch.export.export(layer, (torch.randn(2, 6, 32),), dynamic_shapes=({1: length},))
        x = torch.randn(2, 31, 32)
        torch.testing.assert_close(program.module()(x), layer(x))

    def test_vmap_is_right_and_forward_mode_refused(self):
        x = torch.randn(3, 2, 5, 4, 8)

        def each(a):
            return diffattn.attention(a, a, a, a, a, torch.tensor(0.3), causal=True)

        torch.testing.assert_close(torch.func.vmap(each)(x), torch.stack([each(a) for a in x]))
        with self.assertRaisesRegex(RuntimeError, "forward-mode derivative; use torch.func.vjp"):
            torch.func.jvp(each, (x[0],), (x[0],))

    def test_torch_func_gradients(self):
        q1, q2, k1, k2, v, lam = (t.detach() for t in inputs(dtype=torch.float64))
        weight, mask = torch.rand(16, dtype=torch.float64), torch.randn(9, 9, dtype=torch.float64)

        def loss(*t):
            return diffattn.attention(*t[:6], norm_weight=t[6], mask=t[7], norm_eps=1e-5, causal=True).sin().sum()

        tensors = [q1, q2, k1, k2, v, lam, weight, mask]
        leaves = [t.clone().requires_grad_() for t in tensors]
        want = torch.autograd.grad(loss(*leaves), leaves)
        for got, wanted in zip(torch.func.grad(loss, argnums=tuple(range(8)))(*tensors), want):
            torch.testing.assert_close(got, wanted)
        with self.assertRaisesRegex(RuntimeError, "no second derivative"):
            torch.func.grad(lambda a: torch.func.grad(loss)(a, *tensors[1:]).sum())(q1)

    def test_gradients_of_each_sample(self):
        layer, data = diffattn.nn.preset("microsoft_v1", 32, 4), torch.randn(3, 7, 32)

        def loss(parameters, x):
            return torch.func.functional_call(layer, parameters, (x[None],)).square().mean()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), data)
        for i, x in enumerate(data):
            layer.zero_grad()
            layer(x[None]).square().mean().backward()
            for name, parameter in layer.named_parameters():
                torch.testing.assert_close(each[name][i], parameter.grad, atol=1e-6, rtol=1e-4)

    def test_autocast(self):
        for device in DEVICES:
            tensors = inputs(device=device)
            with torch.autocast(device, dtype=torch.bfloat16):
                out = diffattn.attention(*tensors, causal=True)
                self.assertEqual(diffattn.decode(*[t.detach() for t in tensors]).dtype,
                                 torch.bfloat16)
            rounded = [t.detach().bfloat16().requires_grad_() for t in tensors[:5]]
            want = diffattn.attention(*rounded, tensors[5], causal=True)
            self.assertEqual(out.dtype, torch.bfloat16)
            self.assertTrue(torch.equal(out, want))
            for got, wanted in zip(gradients(out, tensors), gradients(want, [*rounded, tensors[5]])):
                self.assertEqual(got.dtype, torch.float32)
                torch.testing.assert_close(got, wanted.float(), atol=2e-2, rtol=2e-2)

    def test_checkpoint_and_deterministic_mode(self):
        for device in DEVICES:
            tensors = inputs(seq=70, device=device)
            torch.use_deterministic_algorithms(True)
            self.addCleanup(torch.use_deterministic_algorithms, False)

            def call(*t):
                return diffattn.attention(*t, causal=True, norm_eps=1e-5)

            want = gradients(call(*tensors), tensors)
            for reentrant in (False, True):
                got = checkpoint(call, *tensors, use_reentrant=reentrant)
                got.float().sin().sum().backward()
                for tensor, wanted in zip(tensors, want):
                    self.assertTrue(torch.equal(tensor.grad, wanted))
                    tensor.grad = None

    def test_selective_checkpointing_keeps_the_attention(self):
        calls = []

        class Calls(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                calls.append(str(function))
                return function(*args, **(kwargs or {}))

        def layer(*t):
            return diffattn.attention(*t, causal=True, norm_eps=1e-5).tanh()

        keep = functools.partial(create_selective_checkpoint_contexts,
                                 [ops.attention_forward.default])
        tensors = inputs()
        want = gradients(layer(*tensors), tensors)
        for options, times in ((dict(), 2), (dict(context_fn=keep), 1)):
            calls.clear()
            with Calls():
                out = checkpoint(layer, *tensors, use_reentrant=False, **options)
                got = gradients(out, tensors)
            self.assertEqual(calls.count("diffattn.attention_forward.default"), times)
            for a, b in zip(got, want):
                self.assertTrue(torch.equal(a, b))


DDP_PROGRAM = """
import os, sys, torch, torch.distributed as dist
import diffattn
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
layer = torch.load(f"{folder}/layer.pt", weights_only=False)
data = torch.load(f"{folder}/data.pt")
parallel = torch.nn.parallel.DistributedDataParallel(layer)
parallel(data[2 * rank:2 * rank + 2]).square().mean().backward()
torch.save({name: p.grad for name, p in layer.named_parameters()}, f"{folder}/grads{rank}.pt")
dist.barrier()
os._exit(0)  # threads of torch's group may abort an interpreter that ends
"""


class Distributed(unittest.TestCase):
    def test_two_processes_get_the_gradient_of_the_whole_batch(self):
        layer, data = diffattn.nn.preset("microsoft_v1", 32, 4), torch.randn(4, 11, 32)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(copy.deepcopy(layer), f"{folder}/layer.pt")
            torch.save(data, f"{folder}/data.pt")
            running = [subprocess.Popen([sys.executable, "-c", DDP_PROGRAM, str(rank), folder],
                                        stderr=subprocess.PIPE, text=True) for rank in range(2)]
            for process in running:
                _, error = process.communicate(timeout=600)
                self.assertEqual(process.returncode, 0, error)
            got = [torch.load(f"{folder}/grads{rank}.pt") for rank in range(2)]
        layer(data).square().mean().backward()
        for name, parameter in layer.named_parameters():
            self.assertTrue(torch.equal(got[0][name], got[1][name]), name)
            torch.testing.assert_close(got[0][name], parameter.grad, atol=1e-6, rtol=1e-4)


class Modules(unittest.TestCase):
    def test_presets_compute_what_the_published_modules_do(self):
        from safetensors import safe_open
        for name, preset in (("v1_mha", "microsoft_v1"), ("v1_gqa", "microsoft_v1"),
                             ("v2_gqa", "microsoft_v2")):
            with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
                sizes = file.metadata()
                golden = {key: file.get_tensor(key) for key in file.keys()}
            halved = 2 if preset == "microsoft_v1" else 1
            layer = diffattn.nn.preset(
                preset, int(sizes.get("embed_dim") or sizes["d_model"]),
                halved * int(sizes["num_heads"]), num_kv_heads=halved * int(sizes["num_kv_heads"]),
                layer_index=int(sizes.get("depth", 0)), head_dim=int(sizes["head_dim"]))
            layer.load_state_dict({key.removeprefix("param."): value
                                   for key, value in golden.items() if key.startswith("param.")})
            x = golden["x"].clone().requires_grad_()
            out = layer(x)
            torch.testing.assert_close(out, golden["out"], atol=2e-5, rtol=0)
            (out * golden["g"]).sum().backward()
            for key, parameter in [("x", x), *layer.named_parameters()]:
                torch.testing.assert_close(parameter.grad, golden[f"grad.{key}"], atol=2e-5,
                                           rtol=2e-5)

    def test_kinds_by_their_definitions(self):
        """Compares every kind with explicit softmax maps."""
        x = torch.randn(2, 6, 32, dtype=torch.float64)
        for name, heads, kv in (("motif_2_12_7b", 5, 2), ("motif_2_6b", 4, 4), ("temperature", 4, 2),
                                ("microsoft_v2", 4, 2), ("diffllama", 8, 4)):
            layer = diffattn.nn.preset(name, 32, heads, num_kv_heads=kv, head_dim=8, layer_index=2,
                                       rotary=None, dtype=torch.float64)
            torch.testing.assert_close(layer(x), written_out(layer, x), atol=1e-6, rtol=1e-5)

    def test_wrong_use_names_the_argument(self):
        for arguments, text in ((("microsoft_v1", 32, 3), "'num_heads': expected an even number"),
                                (("no_such", 32, 4), "'name': expected one of")):
            with self.assertRaisesRegex(ValueError, text):
                diffattn.nn.preset(*arguments)
        for options, text in ((dict(kind="v3"), "'kind'"), (dict(noise_heads=2), "'noise_heads'"),
                              (dict(num_kv_heads=3), "'num_heads'")):
            with self.assertRaisesRegex(ValueError, text):
                diffattn.nn.DiffAttention(32, 4, **options)
        for shape in ((5, 32), (2, 5, 31)):
            with self.assertRaisesRegex(ValueError, r"'x': expected shape \[B, M, 32\], got"):
                diffattn.nn.DiffAttention(32, 4)(torch.randn(shape))


def written_out(layer, x):
    """Selects the heads one by one with the published index rules."""
    d, heads = layer.head_dim, layer.num_heads
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    groups = heads // layer.num_kv_heads
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()

    def part(tensor, i, width=d):
        return tensor[..., i * width:(i + 1) * width]

    def weights(a, b, scale):
        return (a @ b.transpose(-1, -2) * scale).masked_fill(~causal, -torch.inf).softmax(-1)

    outputs = []
    lam = layer.lambda_value(x).double()
    for j in range(heads):
        kv = j // groups
        if layer.kind == "v1" and layer.layout == "halves":
            qs, ks = (j, j + heads), (kv, kv + layer.num_kv_heads)
            value = torch.cat([part(v, kv), part(v, kv + layer.num_kv_heads)], -1)
        elif layer.kind == "grouped":
            signals = heads // layer.noise_heads
            group = j // signals
            qs = (group * (signals + 1) + j % signals, group * (signals + 1) + signals)
            ks, value = (2 * kv, 2 * kv + 1), part(v, kv, 2 * d)
        elif layer.kind == "v1":
            qs, ks, value = (2 * j, 2 * j + 1), (2 * kv, 2 * kv + 1), part(v, kv, 2 * d)
        elif layer.kind == "v2":
            qs, ks, value = (2 * j, 2 * j + 1), (kv, kv), part(v, kv)
        else:
            qs, ks, value = (j, j), (kv, kv), part(v, kv)
        second = layer.scale / (layer.temperature if layer.kind == "temperature" else 1)
        one = lam[..., j, None] if lam.dim() == 3 else lam
        map1 = weights(part(q, qs[0]), part(k, ks[0]), layer.scale)
        map2 = weights(part(q, qs[1]), part(k, ks[1]), second)
        out = map1 @ value - one * (map2 @ value)
        if layer.head_norm:
            out = out * (out.square().mean(-1, keepdim=True) + layer.norm_eps).rsqrt()
            out = out * (1 - layer.lambda_init)
            if layer.head_norm == "affine":
                out = out * layer.subln.weight
        outputs.append(out)
    return getattr(layer, layer.out_name)(torch.cat(outputs, -1))


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    unittest.main()
