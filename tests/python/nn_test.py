# SPDX-License-Identifier: Apache-2.0
"""Tests diffattn.nn with caches and contexts."""
import unittest

import torch

import diffattn
from diffattn.nn import DiffAttention, KvCache, preset


def layers():
    torch.manual_seed(2)
    for name, heads, kv in (("microsoft_v1", 4, 2), ("microsoft_v2", 4, 2), ("diffllama", 8, 4), ("motif_2_6b", 4, 4),
                            ("motif_2_12_7b", 5, 2), ("temperature", 4, 2)):
        yield name, preset(name, 32, heads, num_kv_heads=kv, head_dim=8, layer_index=1)
    yield "window", DiffAttention(32, 2, rotary="half", window=3)


class Caches(unittest.TestCase):
    def test_pieces_give_what_the_whole_gives(self):
        x = torch.randn(2, 9, 32)
        for name, layer in layers():
            want = layer(x)
            for grad in (False, True):
                cache, pieces = KvCache(), []
                with torch.set_grad_enabled(grad):
                    for begin, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
                        pieces.append(layer(x[:, begin:end], cache=cache))
                        self.assertEqual(len(cache), end)
                torch.testing.assert_close(torch.cat(pieces, dim=1), want, atol=1e-5, rtol=1e-4, msg=name)

    def test_gradients_through_a_cache(self):
        layer, x = preset("microsoft_v1", 32, 4), torch.randn(1, 6, 32)
        want = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
        cache = KvCache()
        pieces = torch.cat([layer(x[:, :2], cache=cache), layer(x[:, 2:], cache=cache)], dim=1)
        for got, wanted in zip(torch.autograd.grad(pieces.square().sum(), list(layer.parameters())), want):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)

    def test_padding_and_beams(self):
        layer, x = preset("diffllama", 32, 4), torch.randn(2, 6, 32)
        starts, positions = torch.tensor([0, 2]), torch.stack([torch.arange(6), torch.arange(6) - 2])
        alone = layer(x[1:, 2:])
        cache = KvCache()
        with torch.no_grad():
            layer(x[:, :5], cache=cache, key_starts=starts, positions=positions[:, :5])
            cache.select_rows(torch.tensor([1, 0]))
            last = layer(x[:, 5:].flip(0), cache=cache, key_starts=starts.flip(0), positions=positions[:, 5:].flip(0))
        torch.testing.assert_close(last[:1], alone[:, -1:], atol=1e-5, rtol=1e-4)


class Contexts(unittest.TestCase):
    def test_cross_attention_by_its_definition(self):
        layer = DiffAttention(32, 2, rotary="half", head_norm=None, lambda_kind="fixed")
        x, source = torch.randn(2, 3, 32), torch.randn(2, 7, 32)
        q1, q2 = layer.q_proj(x).view(2, 3, 2, 2, 8).unbind(3)
        k1, k2 = layer.k_proj(source).view(2, 7, 2, 2, 8).unbind(3)
        v = layer.v_proj(source).view(2, 7, 2, 16)
        want = layer.out_proj(diffattn.attention(q1, q2, k1, k2, v, layer.lambda_init).flatten(-2))
        torch.testing.assert_close(layer(x, context=source), want)
        short = layer(x, context=source, key_lengths=torch.tensor([7, 4]))
        torch.testing.assert_close(short[1:], layer(x[1:], context=source[1:, :4]))

    def test_the_cache_keeps_the_context(self):
        layer, x, source = preset("microsoft_v1", 32, 4), torch.randn(2, 3, 32), torch.randn(2, 7, 32)
        want, cache = layer(x, context=source), KvCache()
        with torch.no_grad():
            first = layer(x[:, :1], context=source, cache=cache)
            calls = []
            layer.k_proj.register_forward_hook(lambda *_: calls.append(1))
            rest = layer(x[:, 1:], cache=cache)
        self.assertEqual((calls, len(cache)), ([], 7))
        torch.testing.assert_close(torch.cat([first, rest], dim=1), want, atol=1e-5, rtol=1e-4)

    def test_wrong_use_is_named(self):
        layer, x = preset("microsoft_v1", 32, 4), torch.randn(2, 3, 32)
        with self.assertRaisesRegex(ValueError, r"'context': expected shape \[B, M, 32\], got \[2, 32\]"):
            layer(x, context=x[:, 0])
        cache = KvCache()
        layer(x, cache=cache)
        with self.assertRaisesRegex(ValueError, "'cache': expected an empty one or one of a context, got one of 3"):
            layer(x, context=x, cache=cache)
        with self.assertRaisesRegex(ValueError, "'cache': expected one of batch 1, got one of batch 2"):
            layer(x[:1], cache=cache)
        with self.assertRaisesRegex(ValueError, "'cache': expected one that holds tokens, got an empty one"):
            KvCache().contents()


if __name__ == "__main__":
    unittest.main(verbosity=2)
