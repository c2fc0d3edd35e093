# SPDX-License-Identifier: Apache-2.0
"""Tests the installed package: its information, the program, wheels, and a torch that it was not built for."""
import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

import torch

import diffattn
import diffattn._library

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY, PROGRAM = pathlib.Path(os.environ["DIFFATTN_LIBRARY"]), os.environ["DIFFATTN_PROGRAM"]


def python(*arguments, drop=(), **variables):
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd="/",
                          env={**environment, **variables}, timeout=120)


class Package(unittest.TestCase):
    def test_info(self):
        info = diffattn.info()
        self.assertEqual(info["torch"], torch.__version__)
        self.assertEqual(info["built_for_torch"], torch.__version__)
        self.assertEqual(info["version"], diffattn.__version__)
        known = {"amx", "avx512", "avx512_bf16", "avx2", "reference", "composed", "sm90", "sm80"}
        for device, backends in info["backends"].items():
            self.assertEqual(set(backends), {"float32", "bfloat16", "float16", "float64"})
            self.assertLessEqual(set(backends.values()), known, device)
        json.dumps(info)

    def test_torch_is_loaded_with_short_spins(self):
        show = "import {}, os; print('GOMP_SPINCOUNT' in os.environ)"
        waiting = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
        for modules, expected in (("diffattn", "1000"), ("torch, diffattn", "300000")):
            result = python("-c", show.format(modules), drop=waiting, OMP_DISPLAY_ENV="verbose")
            self.assertEqual((result.returncode, result.stdout), (0, "False\n"), result.stderr)
            if "GOMP_SPINCOUNT" not in result.stderr:
                self.skipTest("skipped: torch does not use libgomp")
            self.assertIn(f"GOMP_SPINCOUNT = '{expected}'", result.stderr)

    def test_everything_public_is_typed_and_documented(self):
        self.assertTrue((pathlib.Path(diffattn.__file__).parent / "py.typed").is_file())
        functions = [getattr(diffattn, name) for name in ("attention", "decode", "attention_stats",
                                                          "attention_map", "info")]
        functions += [diffattn.nn.DiffAttention.forward, diffattn.nn.preset, diffattn.nn.lambda_init]
        for function in functions:
            self.assertTrue(inspect.getdoc(function), function)
            signature = inspect.signature(function)
            self.assertIsNot(signature.return_annotation, inspect.Signature.empty, function)
            for name, parameter in signature.parameters.items():
                if name != "self":
                    self.assertIsNot(parameter.annotation, inspect.Parameter.empty, (function, name))

    def test_statistics_and_maps_have_names_and_defaults(self):
        q1, q2, k1, k2 = torch.randn(4, 1, 6, 2, 8).unbind(0)
        lam = torch.tensor(0.4)
        stats = diffattn.attention_stats(q1, q2, k1, k2, lam, causal=True)
        self.assertEqual(tuple(stats), diffattn.STATS)
        maps = diffattn.attention_map(q1, q2, k1, k2, lam, causal=True)  # [B, H, 3, M, N]
        self.assertEqual(maps.shape, (1, 2, 3, 6, 6))
        difference = maps[:, :, 2]
        torch.testing.assert_close(difference, maps[:, :, 0] - lam * maps[:, :, 1])
        torch.testing.assert_close(stats["abs_sum"], difference.abs().sum(-1).transpose(1, 2))
        torch.testing.assert_close(stats["max"], difference.amax(-1).transpose(1, 2))
        # For packed sequences, the grid has the size of the longest one.
        offsets = torch.tensor([0, 4, 6], dtype=torch.int32)
        packed = diffattn.attention_map(q1[0], q2[0], k1[0], k2[0], lam, cu_seqlens_q=offsets,
                                        cu_seqlens_k=offsets)
        first = diffattn.attention_map(q1[:, :4], q2[:, :4], k1[:, :4], k2[:, :4], lam)
        self.assertEqual(packed.shape, (2, 2, 3, 4, 4))
        self.assertTrue(torch.equal(packed[0], first[0]))
        with self.assertRaisesRegex(RuntimeError, "argument 'q1': expected 4 axes"):
            diffattn.attention_map(q1.flatten(), q2, k1, k2, lam)

    def test_lambda_may_be_a_number(self):
        for dtype in (torch.float32, torch.float64):
            q, v = torch.randn(1, 5, 2, 8, dtype=dtype), torch.randn(1, 5, 2, 16, dtype=dtype)
            tensor = torch.tensor(0.3, dtype=dtype)
            keys = (q, q.cos(), q.sin(), q.abs())
            self.assertTrue(torch.equal(diffattn.attention(*keys, v, 0.3, causal=True),
                                        diffattn.attention(*keys, v, tensor, causal=True)))
            self.assertTrue(torch.equal(diffattn.decode(*keys, v, 1),
                                        diffattn.decode(*keys, v, torch.tensor(1.0))))
            self.assertTrue(torch.equal(diffattn.attention_map(*keys, 0.3),
                                        diffattn.attention_map(*keys, tensor)))
            self.assertTrue(torch.equal(diffattn.attention_stats(*keys, 0.3)["entropy"],
                                        diffattn.attention_stats(*keys, tensor)["entropy"]))
        with self.assertRaisesRegex(TypeError, "argument 'q1': expected a tensor, got NoneType"):
            diffattn.attention(None, *keys[1:], v, 0.3)
        for wrong in (None, [0.3, 0.3], "0.3"):
            with self.assertRaisesRegex(TypeError, "argument 'lam': expected a tensor or a number"):
                diffattn.attention(*keys, v, wrong)


class Program(unittest.TestCase):
    def test_is_the_program(self):
        result = python("-m", "diffattn", "info", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        direct = subprocess.run([PROGRAM, "info", "--json"], capture_output=True, text=True)
        self.assertEqual(json.loads(result.stdout).keys(), json.loads(direct.stdout).keys())
        self.assertEqual(python("-m", "diffattn", "no-such-verb").returncode, 2)

    def test_says_so_where_there_is_none(self):
        result = python("-m", "diffattn", "info", DIFFATTN_PROGRAM="/no/such/file")
        self.assertEqual(result.returncode, 1)
        self.assertIn("has only the operators", result.stderr)


class Installation(unittest.TestCase):
    def refused(self, library):
        with unittest.mock.patch.dict(os.environ, DIFFATTN_LIBRARY=str(library)):
            with self.assertRaises(ImportError) as caught:
                diffattn._library.load()
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_another_torch_is_named_beside_the_one_built_for(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.assertIn("broken.so is missing", self.refused(folder / "broken.so"))
            (folder / "broken.so").write_bytes(b"not a library")
            self.assertIn(f"does not load with torch {torch.__version__}",
                          self.refused(folder / "broken.so"))
            os.symlink(LIBRARY, folder / "libdiffattn.so")
            (folder / "diffattn_build.json").write_text('{"torch": "1.2.3+cpu"}')
            message = self.refused(folder / "libdiffattn.so")
            self.assertIn("built for torch 1.2.3+cpu", message)
            self.assertIn(f"torch {torch.__version__} is installed", message)

    def test_wheel_of_what_is_built(self):
        try:
            import scikit_build_core  # noqa: F401
        except ImportError as missing:
            self.skipTest(f"skipped: {missing}")
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps",
                 "--no-index", "-w", folder, "--config-settings", f"build-dir={folder}/build",
                 "--config-settings", f"cmake.define.DIFFATTN_PREBUILT={LIBRARY.parent}",
                 str(ROOT)], capture_output=True, text=True, timeout=240)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            wheel, = pathlib.Path(folder).glob("diffattn-*-py3-none-linux_x86_64.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                archive.extractall(f"{folder}/site")
            inside = {name.removeprefix("diffattn/") for name in names
                      if name.startswith("diffattn/")}
            sources = {path.name for path in (ROOT / "python" / "diffattn").glob("*.py")}
            self.assertEqual(inside, sources | {"py.typed", "libdiffattn.so", "diffattn_build.json"})
            result = python(
                "-c", "import torch, diffattn; x = torch.ones(1, 3, 2, 8);"
                "print(diffattn.__file__, diffattn.attention(x, x, x, x, x, torch.tensor(0.5)).sum())",
                drop=("DIFFATTN_LIBRARY", "DIFFATTN_PROGRAM"), PYTHONPATH=f"{folder}/site")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"{folder}/site", result.stdout)
            self.assertIn("tensor(24.)", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why tests are skipped
