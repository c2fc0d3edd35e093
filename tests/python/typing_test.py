# SPDX-License-Identifier: Apache-2.0
"""Checks with mypy what users see: a program of theirs passes --strict, and a misspelt name is found."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = '''
import torch
import diffattn
from diffattn import hf


def step(layer: diffattn.nn.DiffAttention, x: torch.Tensor) -> torch.Tensor:
    cache = diffattn.nn.KvCache()
    return layer(x, cache=cache, causal=True)  # type: ignore[no-any-return]


def accelerated(model: torch.nn.Module) -> torch.nn.Module:
    return diffattn.hf.restore(hf.accelerate(model))


q = torch.randn(1, 8, 2, 16)
out: torch.Tensor = diffattn.attention(q, q, q, q, q, 0.3, causal=True, window=(4, 0))
visible: torch.Tensor = diffattn.attention_stats(q, q, q, q, 0.3, causal=True)["visible"]
maps: torch.Tensor = diffattn.attention_map(q, q, q, q, 0.3, rows=4)
layer = diffattn.nn.preset("diffllama", 64, 4, num_kv_heads=2, window=None)
model = diffattn.load("runs/a")
if isinstance(model, diffattn.Model):
    text: str = model.generate("x", max_new_tokens=3, temperature=0.5)
    texts: list[str] = model.generate(["x", "y"], top_k=5)
page: str = diffattn.analyze(model, text="x").page
report = diffattn.convert("a", "b", to="diffllama")
'''
WRONG = {
    "hf.acelerate(torch.nn.Linear(2, 2))": 'Module has no attribute "acelerate"',
    "diffattn.hf.acelerate(torch.nn.Linear(2, 2))": 'Module has no attribute "acelerate"',
    "diffattn.attention(q, q, q, q, q, 0.3, casual=True)": 'Unexpected keyword argument "casual"',
    "diffattn.attention_stats(q, q, q, q, 0.3, casual=True)": 'Unexpected keyword argument "casual"',
    'diffattn.nn.preset("diffllama", 64, 4, windw=3)': 'Unexpected keyword argument "windw"',
    'diffattn.Generator("runs/a").generate("x", max_tokens=3)': 'Unexpected keyword argument "max_tokens"',
    'diffattn.attention(q, q, q, q, q, "0.3")': "incompatible type",
}


def mypy(code, folder):
    """Checks code as a user's: the package is in site-packages, and not in the folder of the program."""
    program = folder / "program.py"
    program.write_text(code)
    site = folder / "site"
    if not site.exists():
        site.mkdir()
        for package in ("diffattn", "diffattn_program"):
            (site / package).symlink_to(ROOT / "python" / package)
    # mypy reports errors only in the user's file, as it does for packages of site-packages.
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
                           f"--cache-dir={ROOT / 'build' / 'mypy'}", str(program)],  # torch takes a minute
                          capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "MYPYPATH": str(site)})


@unittest.skipIf(importlib.util.find_spec("mypy") is None, "skipped: mypy is not installed")
class Typed(unittest.TestCase):
    def test_strict_user_program(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            result = mypy(PROGRAM, folder)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            lines = PROGRAM.count("\n")
            wrong = mypy(PROGRAM + "".join(f"{line}\n" for line in WRONG), folder)
            self.assertEqual(wrong.returncode, 1, wrong.stderr)
            for i, (line, message) in enumerate(WRONG.items()):
                found = [one for one in wrong.stdout.splitlines() if f"program.py:{lines + 1 + i}:" in one]
                self.assertTrue(any(message in one for one in found), f"{line}: {wrong.stdout}")


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why tests are skipped
