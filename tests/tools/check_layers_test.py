# SPDX-License-Identifier: Apache-2.0
"""tools/check_layers.py finds each kind of violation it exists for."""
import importlib.util
import pathlib
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers.py"
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def problems_of(path, text):
    spec = importlib.util.spec_from_file_location("check_layers", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    with tempfile.TemporaryDirectory() as folder:
        tool.ROOT = pathlib.Path(folder)
        file = tool.ROOT / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        problems = []
        for name in tool.files():
            tool.check_file(name, problems)
        return problems


class CheckLayers(unittest.TestCase):
    def test_clean_file(self):
        self.assertEqual(problems_of("src/ops/a.cpp", SPDX + "#include <torch/torch.h>\n"), [])

    def test_violations(self):
        cases = {
            "src/kernels/reference/a.cpp": SPDX + "#include <torch/torch.h>\n",
            "src/kernels/a.cpp": SPDX + "#include <immintrin.h>\n",
            "src/kernels/cpu/forward.h": SPDX + "#include <immintrin.h>\n",
            "src/kernels/cuda/a.cu": SPDX + "#include <ATen/ATen.h>\n",
            "src/io/a.cpp": SPDX + '#include "diffattn/kernels/params.h"\n',
            "src/ops/a.cpp": SPDX + '#include "kernels/visible.h"\n',
            "src/nn/a.cpp": SPDX + '#include "diffattn/kernels/params.h"\n',
            "apps/diffattn/a.cpp": SPDX + '#include "ops/checks.h"\n',
            "apps/diffattn/b.cpp": SPDX + 'void f() { fmt::print("{}", name); }\n',
            "apps/diffattn/c.cpp": SPDX + "void f() { at::parallel_for(0, n, 1, g); }\n",
            "include/diffattn/kernels/a.h": SPDX + "#include <cuda_runtime.h>\n",
            "src/kernels/cuda/b.cuh": SPDX + 'void f() { asm volatile("nop;"); }\n',
            "src/ops/long.cpp": SPDX + "\n" * 600,
            "src/ops/b.cpp": "int x;\n",
            "src/analysis/report/a.cpp": SPDX + "#include <torch/torch.h>\n",
            "src/analysis/picture/a.cpp": SPDX + "#include <nlohmann/json.hpp>\n",
            "viewer/src/a.js": SPDX + "node.innerHTML = token;\n",
            "viewer/src/b.js": SPDX + 'const address = "https://example.com/x.js";\n',
            "viewer/src/c.js": SPDX + "\n" * 600,
            "viewer/style.css": "body {}\n",
            "src/serve/page/src/a.js": SPDX + "node.innerHTML = token;\n",
            "src/serve/page/src/b.js": SPDX + 'fetch("//example.com/x");\n',
            "src/serve/a.cpp": SPDX + "#include <torch/torch.h>\n",
            "src/serve/api/a.cpp": SPDX + '#include "serve/engine/scheduler.h"\n',
            "docs/a.md": "see " + "/" + "home/someone/file\n",
        }
        for path, text in cases.items():
            self.assertGreaterEqual(len(problems_of(path, text)), 1, path)

    def test_assembly_belongs_into_ptx(self):
        text = SPDX + 'void f() { asm volatile("nop;"); }\n'
        self.assertEqual(problems_of("src/kernels/cuda/ptx/a.cuh", text), [])
        barrier = SPDX + 'void f() { asm("" : "+v"(x)); }\n'
        self.assertEqual(problems_of("src/kernels/cpu/avx512/a.h", barrier), [])


if __name__ == "__main__":
    unittest.main()
