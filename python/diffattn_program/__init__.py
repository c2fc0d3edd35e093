# SPDX-License-Identifier: Apache-2.0
"""Finds the compiled parts of the package `diffattn` and starts its program.

The command `diffattn` starts here. This package does not import torch, which would take seconds.
"""
import importlib.util
import os
import pathlib
import re
import sys
from typing import Dict, List, NoReturn, Optional

from diffattn_program import terminal

NO_PROGRAM = ("diffattn: this installation has only the operators. Install a wheel, or install from source after "
              "`apt-get install libcli11-dev libfmt-dev nlohmann-json3-dev libtomlplusplus-dev zlib1g-dev`, or set "
              "DIFFATTN_PROGRAM to the path of the program.")
PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "diffattn"


def torch_folder() -> Optional[pathlib.Path]:
    """Returns the folder of the installed torch package, or None."""
    spec = importlib.util.find_spec("torch")
    return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def torch_version(folder: pathlib.Path) -> str:
    """Returns the version of the torch package in a folder: "2.13.0+cpu"."""
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", (folder / "version.py").read_text())
    return found.group(1) if found else "unknown"


def minor(version: str) -> str:
    """Returns "2.13" for "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def built_for() -> List[str]:
    """Returns the torch minor versions for which this package has libraries, oldest first."""
    found = [path.name.removeprefix("torch-") for path in (PACKAGE / "lib").glob("torch-*")]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def other_torch(version: str) -> str:
    """Returns the message for an installed torch for which there is no library."""
    have = built_for()
    if not have:
        return (f"diffattn: {PACKAGE} has no compiled libraries; install the package with pip or `make python`, or "
                "set DIFFATTN_LIBRARY to the path of libdiffattn.so.")
    return (f"diffattn: built for torch {', '.join(have)}, but torch {version} is installed; run "
            f"`pip install 'torch=={have[-1]}.*'`, or install diffattn from source for this torch. Only "
            "`diffattn convert` works with every torch.")


def only_operators(version: str) -> str:
    """Returns the message for an installation without full library and program for a torch version."""
    full = [have for have in built_for() if (PACKAGE / "lib" / f"torch-{have}" / "diffattn").is_file()]
    if full:
        return (f"diffattn: for torch {version} this installation has only the operators. It has models, training and "
                f"the program for torch {', '.join(full)}: run `pip install 'torch=={full[-1]}.*'`.")
    return NO_PROGRAM


def folder_for(version: str) -> pathlib.Path:
    """Returns the folder with the libraries for a torch version, which may not exist.

    $DIFFATTN_LIBRARY names an operator library; its folder is then the one.
    """
    given = os.environ.get("DIFFATTN_LIBRARY")
    return pathlib.Path(given).parent if given else PACKAGE / "lib" / f"torch-{minor(version)}"


def program(version: str) -> Optional[pathlib.Path]:
    """Returns the program: $DIFFATTN_PROGRAM, or the one beside the libraries, or None."""
    given = os.environ.get("DIFFATTN_PROGRAM")
    found = pathlib.Path(given) if given else folder_for(version) / "diffattn"
    return found if found.is_file() else None


def converter() -> pathlib.Path:
    """Returns the library that converts models with every torch and without one. It may not exist."""
    given = os.environ.get("DIFFATTN_LIBRARY")
    return (pathlib.Path(given).parent if given else PACKAGE / "lib") / "libdiffattn_converter.so"


def environment(program: pathlib.Path, torch: pathlib.Path) -> Dict[str, str]:
    """Returns the environment for the program, with its folder and torch's libraries in LD_LIBRARY_PATH."""
    folders = [str(program.resolve().parent), str(torch / "lib")]
    if os.environ.get("LD_LIBRARY_PATH"):
        folders.append(os.environ["LD_LIBRARY_PATH"])
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def _stop(message: str) -> NoReturn:
    terminal.write(message + "\n")
    sys.exit(1)


def main() -> NoReturn:
    """Replaces this process by the program, with the same arguments. The verb `convert` needs no torch."""
    torch = torch_folder()
    version = torch_version(torch) if torch else None
    found = program(version) if version else None
    if found is None and sys.argv[1:2] == ["convert"]:
        from diffattn_program import convert
        try:
            sys.exit(convert.main(sys.argv[2:]))
        except convert.ConversionError as error:  # there is no library
            _stop(str(error))
    if torch is None or version is None:
        have = built_for()
        _stop("diffattn: torch is not installed; run `pip install "
              f"'torch{f'=={have[-1]}.*' if have else '>=2.11'}'`.")
    if found is None:
        _stop(only_operators(version) if folder_for(version).is_dir() else other_torch(version))
    sys.stdout.flush()
    os.execve(found, [str(found), *sys.argv[1:]], environment(found, torch))
