# SPDX-License-Identifier: Apache-2.0
"""`make test-long` runs every part, and fails when any one of them fails. `make demo` leaves the CUDA kernels out, and
`make` after it builds them.

Runs the Makefile in a folder where each command that it calls is a stub. The stub writes down how it was called,
and fails at the call that the test chooses.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUB = """#!/bin/sh
cd {folder}
echo "$(basename "$0") $*" >> calls
[ "$(wc -l < calls)" != "$FAIL_AT" ]
"""
COMMANDS = ["scripts/setup_check", "scripts/setup_fuzz", "scripts/setup_browser", "scripts/setup_python_tests",
            "tools/check_format", "tools/check_tidy.py", "tools/coverage.py", "tools/fuzz.py", "tools/make_wheel",
            "tools/test_wheels", "tools/test_source_install", "tests/soak/soak.py", ".venv/bin/ruff", "bin/cmake",
            "bin/ctest", "bin/python3", "build/release/diffattn",
            *(f"build/coverage/{name}_tests" for name in ("io", "tokenizer", "convert", "data"))]


class Stubs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        shutil.copy(ROOT / "Makefile", self.folder)
        for name in COMMANDS:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(STUB.format(folder=self.folder))
            path.chmod(0o755)
        tools = self.folder / "bin"
        setup = self.folder / "scripts" / "setup"
        setup.write_text(f'#!/bin/sh\nmkdir -p build\ntest -f "$1" || '
                         f'printf "PYTHON := python3\\nCMAKE := {tools}/cmake\\nCTEST := {tools}/ctest\\n" > "$1"\n')
        setup.chmod(0o755)

    def run_make(self, *arguments, fail_at=0):
        """Returns the exit status and the calls."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        environment |= {"FAIL_AT": str(fail_at), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(["make", *arguments, "JOBS=1"], cwd=self.folder, env=environment, capture_output=True,
                              text=True, timeout=60, check=False)
        return done.returncode, calls.read_text().splitlines()


class Demo(Stubs):
    def configure(self, cuda):
        """Leaves what CMake leaves in the build folder."""
        folder = self.folder / "build" / "release"
        (folder / "build.ninja").write_text("")
        (folder / "CMakeCache.txt").write_text(f"DIFFATTN_CUDA:STRING={cuda}\n")

    def test_the_first_configuration_leaves_the_cuda_kernels_out(self):
        _, calls = self.run_make("demo")
        self.assertEqual(calls[0], "cmake --preset release -DDIFFATTN_PYTHON=python3 -DDIFFATTN_CUDA=OFF")
        self.assertEqual(calls[1], "cmake --build --preset release -j 1 --target diffattn_program")
        self.assertTrue(calls[-1].startswith("diffattn compare "))
        self.configure("OFF")
        self.assertEqual(self.run_make("demo")[1], calls[1:])

    def test_make_after_it_builds_them(self):
        self.run_make("demo")
        self.configure("OFF")
        for target in ("build", "test"):
            self.assertIn("cmake --preset release -DDIFFATTN_PYTHON=python3 -DDIFFATTN_CUDA=AUTO",
                          self.run_make(target)[1])
        self.configure("AUTO")
        self.assertEqual(self.run_make("build")[1], ["cmake --build --preset release -j 1"])
        self.assertFalse(any("--preset release -D" in call for call in self.run_make("demo")[1]))


class TestLong(Stubs):
    def run_long(self, fail_at=0):
        return self.run_make("test-long", "LONG_INPUTS=12345", fail_at=fail_at)

    def test_every_part_runs(self):
        status, calls = self.run_long()
        self.assertEqual(status, 0)
        for part in ("python3 tools/check_layers.py", "check_format ", "ruff check", "check_tidy.py ",
                     "check_tidy.py --thorough", "ctest --preset release", "fuzz.py --seconds 8", "soak.py",
                     f"make_wheel {self.folder}/bin/cmake python3 2.11 2.13 2.15", "test_wheels", "test_source_install",
                     "python3 tests/serve/load_test.py", "python3 tests/serve/fuzz_test.py",
                     "python3 tests/python/two_hosts_test.py",
                     "ctest --preset asan ", "ctest --preset asan-torch", "ctest --preset tsan", "data_tests",
                     "coverage.py --minimum", "cmake --build --preset fuzz", "fuzz.py --inputs 12345"):
            self.assertTrue(any(call.startswith(part) for call in calls), (part, calls))

    def test_the_failure_of_any_part_fails_the_whole(self):
        _, calls = self.run_long()
        for at, call in enumerate(calls, 1):
            status, until = self.run_long(at)
            self.assertEqual(until[at - 1], call)
            # `make test` alone does without the fuzzer on a machine without clang.
            without_clang = call.startswith("setup_fuzz") and calls.index(call) == at - 1
            self.assertEqual(status == 0, without_clang, (at, call))


if __name__ == "__main__":
    unittest.main()
