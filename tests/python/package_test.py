# SPDX-License-Identifier: Apache-2.0
"""Tests the package: its information, the program, and a torch that it was not built for."""
import contextlib
import importlib.util
import inspect
import json
import math
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import diffattn_program
import torch
from diffattn_program import terminal

import diffattn
import diffattn._library

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY, PROGRAM = pathlib.Path(os.environ["DIFFATTN_LIBRARY"]), os.environ["DIFFATTN_PROGRAM"]


def python(*arguments, drop=(), **variables):
    environment = {key: value for key, value in os.environ.items() if key not in drop}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd="/",
                          env={**environment, **variables}, timeout=600)


class Package(unittest.TestCase):
    def test_info(self):
        info = diffattn.info()
        self.assertEqual(info["torch"], torch.__version__)
        self.assertEqual(info["built_for_torch"], torch.__version__)
        self.assertEqual(info["version"], diffattn.__version__)
        known = {"amx", "avx512", "avx512_bf16", "avx2", "float64", "reference", "composed", "sm90",
                 "sm80"}
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
        functions += [diffattn.load, diffattn.train, diffattn.analyze, diffattn.convert, diffattn.Model.generate]
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

    def test_starts_without_importing_torch(self):
        result = python("-c", "import sys, diffattn_program as p; p.program(p.torch_version(p.torch_folder()));"
                        "print('torch' in sys.modules)")
        self.assertEqual(result.stdout, "False\n", result.stderr)


class Converter(unittest.TestCase):
    MODEL = ROOT / "tests" / "fixtures" / "golden" / "diffllama_gqa"
    MAIN = ("-S", "-c", "from diffattn_program import main; main()")  # -S hides site-packages, and torch with them

    def test_needs_no_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            code = ("import sys; from diffattn_program.convert import convert\n"
                    f"report = convert({str(self.MODEL)!r}, {folder + '/a'!r}, to='microsoft')\n"
                    "print(report['to'], 'torch' in sys.modules)")
            result = python("-S", "-c", code)
            self.assertEqual(result.stdout, "microsoft False\n", result.stderr)
            result = python(*self.MAIN, "convert", "--to", "diffllama", folder + "/a", folder + "/b")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("microsoft to diffllama", result.stdout)
            self.assertEqual(*(pathlib.Path(one, "model.safetensors").read_bytes()
                               for one in (self.MODEL, folder + "/b")))

    def test_is_the_command_of_the_program(self):
        words = ["convert", "--to", "microsoft", "--dry-run", str(self.MODEL), "out"]
        for more in ([], ["--json"], ["--gqa", "none"], ["--forze"], ["--help"], ["--report", "/no/such/folder/a"]):
            want = subprocess.run([PROGRAM, *words, *more], capture_output=True, text=True, cwd="/")
            got = python(*self.MAIN, *words, *more)
            self.assertEqual((got.returncode, got.stdout, got.stderr), (want.returncode, want.stdout, want.stderr))

    @unittest.skipIf("ASAN_OPTIONS" in os.environ, "AddressSanitizer manages the memory")
    def test_says_that_there_is_no_memory(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name, "large")
            shutil.copytree(self.MODEL, folder)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 1 << 14}))
            data = (folder / "model.safetensors").read_bytes()
            tensors, end = json.loads(data[8:8 + int.from_bytes(data[:8], "little")]), 0
            for tensor, info in tensors.items():
                if tensor in ("lm_head.weight", "model.embed_tokens.weight"):
                    info["shape"][0] = 1 << 14  # 4 MiB
                if tensor != "__metadata__":
                    begin, end = end, end + 4 * math.prod(info["shape"])
                    info["data_offsets"] = [begin, end]
            head = json.dumps(tensors).encode()
            (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(end))
            result = python(*self.MAIN, "convert", "--to", "microsoft", folder, folder.parent / "out",
                            LD_PRELOAD=os.environ["DIFFATTN_ALLOCATION_LIMIT"], DIFFATTN_TEST_ALLOCATION=str(1 << 21))
            self.assertEqual((result.returncode, result.stderr), (
                4, "diffattn: out of memory\ndiffattn: To use less memory, use a machine that holds the largest tensor "
                "of the model twice.\n"))

    def test_text_cannot_control_a_terminal(self):
        with tempfile.TemporaryDirectory() as name:
            folder = os.path.join(name, "\x1b[31m\x07\x9b")  # ESC, BEL, and the C1 control CSI
            words = [sys.executable, *self.MAIN, "convert", "--to", "microsoft", "--dry-run", "--json", folder, "out"]
            self.assertIn(r"\u001b[31m\u0007\u009b", self.on_terminal(words, "stderr"))
            shutil.copytree(self.MODEL, folder)
            self.assertEqual(json.loads(self.on_terminal(words, "stdout"))["source"], folder)
        self.assertEqual(terminal.terminal_text("a\tb\n\x7f\udc9bé"), "a\tb\n\\u007f\\x9bé")

    def on_terminal(self, words, stream):
        """Returns what a command shows on a terminal, which must have no control character but line ends."""
        ours, theirs = pty.openpty()
        with open(ours, "rb", buffering=0) as screen:
            process = subprocess.Popen(words, cwd="/", env={**os.environ, "TERM": "dumb"},  # without a progress bar
                                       **{"stdout": subprocess.DEVNULL, stream: theirs})
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # the command has closed the terminal
                while piece := screen.read(1 << 16):
                    shown += piece
            process.wait(timeout=60)
        text = shown.decode()
        self.assertEqual([c for c in text if c not in "\r\n" and (ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0)], [], text)
        return text

    def test_other_verbs_say_what_to_install(self):
        result = python(*self.MAIN, "info")
        self.assertEqual(result.returncode, 1)
        self.assertIn("torch is not installed; run `pip install 'torch", result.stderr)

    def test_works_beside_a_torch_without_a_program(self):
        result = python("-c", self.MAIN[-1], "convert", "--help", DIFFATTN_PROGRAM="/no/such/file")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("diffattn convert", result.stdout)


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
            self.assertIn("was built for torch 1.2.3+cpu", message)
            self.assertIn(f"torch {torch.__version__} is installed", message)

    def test_the_libraries_of_the_installed_torch_are_chosen(self):
        with tempfile.TemporaryDirectory() as name, \
                unittest.mock.patch.object(diffattn_program, "PACKAGE", pathlib.Path(name)), \
                unittest.mock.patch.dict(os.environ):
            del os.environ["DIFFATTN_LIBRARY"], os.environ["DIFFATTN_PROGRAM"]
            self.assertIn("has no compiled libraries", diffattn_program.other_torch("2.12.0"))
            for minor in ("2.9", "2.11", "2.13"):
                (pathlib.Path(name) / "lib" / f"torch-{minor}").mkdir(parents=True)
            self.assertEqual(diffattn_program.folder_for("2.11.0+cu130").name, "torch-2.11")
            self.assertEqual(diffattn_program.built_for(), ["2.9", "2.11", "2.13"])
            message = diffattn_program.other_torch("2.12.1+cpu")
            self.assertIn("built for torch 2.9, 2.11, 2.13, but torch 2.12.1+cpu is installed", message)
            self.assertIn("pip install 'torch==2.13.*'", message)
            self.assertIn("has only the operators. Install a wheel", diffattn_program.only_operators("2.9.0"))
            (pathlib.Path(name) / "lib" / "torch-2.11" / "diffattn").touch()
            self.assertRegex(diffattn_program.only_operators("2.9.0"), "for torch 2.9.0 .*pip install 'torch==2.11")

    def test_the_metadata_names_the_torches_of_a_wheel(self):
        requirement = load_wheel_metadata().requirement
        self.assertEqual(requirement(["2.13"]), "torch==2.13.*")
        self.assertEqual(requirement(["2.13", "2.11", "2.15"]), "torch>=2.11,<2.16,!=2.12.*,!=2.14.*")
        with self.assertRaises(ValueError):
            requirement(["2.13", "3.0"])


def load_wheel_metadata():
    spec = importlib.util.spec_from_file_location("wheel_metadata", ROOT / "tools" / "wheel_metadata.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why tests are skipped
