# SPDX-License-Identifier: Apache-2.0
"""Installs a wheel into an empty environment without a compiler, converts a model there without torch, and then runs
tests/python/installed.py with torch.

Without arguments it makes the wheel from the build folder $DIFFATTN_BUILD and uses the torch of this Python. With
`--wheel FILE --torch 2.13` it lets pip install torch too, and with `--torch any` the one that pip picks
(tools/test_wheels calls it so).
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def run(*words, **kwargs):
    subprocess.run([str(word) for word in words], check=True, **kwargs)


def wheel_of_build(folder):
    """Makes a wheel of what is built, without compiling."""
    run(os.environ["DIFFATTN_CMAKE"], "--install", os.environ["DIFFATTN_BUILD"], "--component", "python", "--prefix",
        folder / "stage", stdout=subprocess.DEVNULL)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
        "--wheel-dir", folder, "--config-settings", f"build-dir={folder}/build", "--config-settings",
        f"cmake.define.DIFFATTN_PREBUILT={folder}/stage", ROOT)
    wheel, = folder.glob("diffattn-*-py3-none-*.whl")
    return wheel


def empty_environment(folder, wheel):
    """Makes a virtual environment with the wheel and without torch. Returns its Python."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    start = time.perf_counter()
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, installed in {time.perf_counter() - start:.1f} s",
          flush=True)
    return python


def add_torch(python, wheel, torch, packages):
    """Lets pip install what the wheel requires, with a minor version of torch or "any" that pip picks. None: shows the
    torch of this Python."""
    if torch is not None:
        pinned = [] if torch == "any" else [f"torch=={torch}.*"]
        run(python, "-m", "pip", "install", "--quiet", wheel, *pinned, *packages)
        return
    site = pathlib.Path(subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True).strip())
    (site / "torch_of_the_build.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")


def check_without_torch(python, folder, environment):
    """Converts a model by command and by function, and checks what the other verbs say."""
    model = ROOT / "tests" / "fixtures" / "golden" / "diffllama_gqa"
    run(python.parent / "diffattn", "convert", "--to", "microsoft", model, folder / "there", env=environment,
        stdout=subprocess.DEVNULL)
    run(python, "-c", "import sys; from diffattn_program.convert import convert\n"
        "convert(*sys.argv[1:], to='diffllama')", folder / "there", folder / "back", env=environment)
    there, back = ((one / "model.safetensors").read_bytes() for one in (model, folder / "back"))
    assert there == back, "the conversion changed the weights"
    info = subprocess.run([python.parent / "diffattn", "info"], env=environment, capture_output=True, text=True)
    assert info.returncode == 1 and "torch is not installed; run `pip install 'torch==" in info.stderr, info
    print("without torch: convert works, info says what to install", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheel", type=pathlib.Path)
    parser.add_argument("--torch", help="minor version to install with the wheel, or any")
    parser.add_argument("--environment", type=pathlib.Path, help="folder to keep the environment in")
    parser.add_argument("packages", nargs="*", help="further packages, such as transformers")
    arguments = parser.parse_args()
    if arguments.wheel is None:
        try:
            import scikit_build_core  # noqa: F401
        except ImportError as missing:
            print(f"skipped: {missing}")
            return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wheel = arguments.wheel or wheel_of_build(folder)
        python = empty_environment(arguments.environment or folder / "empty", wheel)
        path = str(python.parent)
        assert not any(shutil.which(name, path=path) for name in ("gcc", "g++", "cc", "c++", "clang", "nvcc", "cmake"))
        environment = {"PATH": path, "HOME": name, "TMPDIR": name}
        check_without_torch(python, folder, environment)
        add_torch(python, wheel, arguments.torch, arguments.packages)
        script = ROOT / "tests" / "python" / "installed.py"
        return subprocess.run([python, script], cwd=name, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
