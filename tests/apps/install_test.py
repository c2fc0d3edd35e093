# SPDX-License-Identifier: Apache-2.0
"""Tests `cmake --install`: the CMake package, the pkg-config files, the program, and examples/cpp
built with them. The installed tree is moved first, so that no file may point to its old place."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

CMAKE = os.environ["DIFFATTN_CMAKE"]
BUILD = os.environ["DIFFATTN_BUILD"]
COMPILER = os.environ["DIFFATTN_COMPILER"]
EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/cpp"
CPP_PAGE = EXAMPLE.parents[1] / "docs/cpp.md"
# Flags for the header that the project precompiled, which saves minutes if the compiler accepts it.
PRECOMPILED = os.environ.get("DIFFATTN_PRECOMPILED", "")

REQUESTS = """
cmake_minimum_required(VERSION 3.25)
project(requests LANGUAGES CXX)
function(request)
  find_package(diffattn ${ARGN} CONFIG QUIET)
  message(STATUS "${ARGN}: found ${diffattn_FOUND} ${diffattn_VERSION} ${diffattn_NOT_FOUND_MESSAGE}")
  unset(diffattn_DIR CACHE)
endfunction()
request(99.0)
request(0.1)
request(COMPONENTS nonsense)
request(0.2 COMPONENTS train convert)
set(DIFFATTN_TORCH_DIR ${CMAKE_CURRENT_SOURCE_DIR})
request(0.2.0)
"""

# Uses the train, data and convert libraries through headers that do not include torch.
PROGRAM = """
#include <cstdio>
#include "diffattn/convert/convert.h"
#include "diffattn/data/tasks.h"
#include "diffattn/train/run_config.h"
int main() {
  diffattn::train::RunConfig config;
  config.set("task", "needle");
  config.resolve();
  const auto task = diffattn::data::needle_task(config.needle);
  std::printf("%s %s %d\\n", std::string(format_name(diffattn::convert::Format::kDiffLlama)).c_str(),
              task_name(config.task).c_str(), static_cast<int>(task->vocab_size()));
}
"""


def run(*command, **kwargs):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=400,
                          check=False, **kwargs)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        first, cls.prefix = cls.folder / "first", cls.folder / "moved"
        result = run(CMAKE, "--install", BUILD, "--prefix", first)
        assert result.returncode == 0, result.stderr
        first.rename(cls.prefix)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_the_program_runs_where_it_is(self):
        environment = {"PATH": os.environ["PATH"]}
        result = run(self.prefix / "bin/diffattn", "--version", env=environment)
        self.assertRegex(result.stdout, r"^diffattn \d+\.\d+\.\d+\n$", result.stderr)
        libraries = run("ldd", self.prefix / "bin/diffattn", env=environment).stdout
        own = [line for line in libraries.splitlines() if "libdiffattn" in line]
        self.assertGreaterEqual(len(own), 3, libraries)
        for line in own:
            self.assertIn(str(self.prefix), line)

    def test_versions_and_components(self):
        folder = self.folder / "requests"
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(REQUESTS)
        said = run(CMAKE, "-S", folder, "-B", folder / "build",
                   f"-DCMAKE_PREFIX_PATH={self.prefix}").stdout
        self.assertIn("99.0: found 0", said)
        self.assertIn("0.1: found 0", said)
        self.assertIn("nonsense: found 0", said)
        self.assertRegex(said, r"convert: found 1 0\.2\.")
        self.assertRegex(said, r"0\.2\.0: found 0 .*set DIFFATTN_TORCH_DIR")

    def test_libraries_carry_their_version(self):
        names = {path.name for path in self.prefix.rglob("libdiffattn.so*")}
        self.assertGreaterEqual(len(names), 3, names)  # .so, .so.0.2, .so.0.2.0

    def test_pkg_config(self):
        if not shutil.which("pkg-config"):
            self.skipTest("skipped: no pkg-config")
        folder = next(self.prefix.rglob("diffattn.pc")).parent
        environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
        flags = run("pkg-config", "--cflags", "--libs", "diffattn-train", env=environment)
        self.assertEqual(flags.returncode, 0, flags.stderr)
        for flag in flags.stdout.split():
            if flag.startswith(("-I", "-L")):
                self.assertTrue(pathlib.Path(flag[2:]).is_dir(), flag)
        self.assertIn("-std=c++20", flags.stdout)
        libraries = {path.name.removeprefix("lib").split(".")[0]
                     for path in self.prefix.rglob("libdiffattn*")}
        libraries -= {"diffattn_kernels", "diffattn_compare"}  # parts of others, without headers
        self.assertEqual(libraries, set(re.findall(r"-l(diffattn\w*)", flags.stdout)))
        (self.folder / "main.cpp").write_text(PROGRAM)
        made = run(COMPILER, self.folder / "main.cpp", "-o", self.folder / "main", *flags.stdout.split())
        self.assertEqual(made.returncode, 0, made.stderr)
        made = run(self.folder / "main", env={"PATH": os.environ["PATH"]})
        self.assertRegex(made.stdout, r"^diffllama needle \d+\n$", made.stderr)

    def run_example(self, source, build):
        """Builds the example project in `source` on the installed tree and returns what it prints."""
        result = run(CMAKE, "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
                     "-DCMAKE_BUILD_TYPE=Release")
        self.assertEqual(result.returncode, 0, result.stderr)
        if PRECOMPILED:
            run(CMAKE, build, f"-DCMAKE_CXX_FLAGS={PRECOMPILED}", "-DCMAKE_CXX_EXTENSIONS=OFF",
                "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG")
        result = run(CMAKE, "--build", build)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        result = run(build / "example", env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=build)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_the_example_builds_and_runs(self):
        printed = self.run_example(EXAMPLE, self.folder / "example")
        self.assertIn("attention: gradient of lambda", printed)
        self.assertIn("training: loss", printed)
        self.assert_spins_briefly(self.folder / "example" / "example")

    def assert_spins_briefly(self, program):
        """It starts itself again with GOMP_SPINCOUNT, which Linux shows in the process's environment."""
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        with subprocess.Popen([program], env=environment, cwd=program.parent, stdout=subprocess.DEVNULL) as process:
            found = b""
            while b"GOMP_SPINCOUNT" not in found and process.poll() is None:
                found = pathlib.Path(f"/proc/{process.pid}/environ").read_bytes()
            process.kill()
        self.assertIn(b"GOMP_SPINCOUNT=1000", found.split(b"\0"))

    def test_the_training_loop_of_the_documentation_runs(self):
        blocks = re.findall(r"```cpp\n(.*?)```", CPP_PAGE.read_text(), re.DOTALL)
        programs = [block for block in blocks if "int main()" in block]
        self.assertEqual(len(programs), 1)
        source = self.folder / "documented"
        source.mkdir()
        shutil.copy(EXAMPLE / "CMakeLists.txt", source)
        (source / "main.cpp").write_text(programs[0])
        printed = self.run_example(source, self.folder / "documented_build")
        accuracy = re.search(r"accuracy ([\d.]+)", printed)
        self.assertTrue(accuracy, printed)
        self.assertGreater(float(accuracy.group(1)), 0.99, printed)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why a test was skipped
