# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the operator library. Raises ImportError if it was built for another torch."""
import json
import os
import pathlib
from typing import Any, Dict, Optional

import torch

PACKAGE = pathlib.Path(__file__).resolve().parent
NAME = "libdiffattn.so"
NO_PROGRAM = ("diffattn: this installation has only the operators; build the program with `make` and install "
              "it with `make python`, or set DIFFATTN_PROGRAM to its path.")


def path() -> pathlib.Path:
    """Returns the operator library: $DIFFATTN_LIBRARY, or the one in this package."""
    return pathlib.Path(os.environ.get("DIFFATTN_LIBRARY") or PACKAGE / NAME)


def program() -> Optional[pathlib.Path]:
    """Returns the program: $DIFFATTN_PROGRAM, or the one next to the library, or None."""
    given = os.environ.get("DIFFATTN_PROGRAM")
    found = pathlib.Path(given) if given else path().parent / "diffattn"
    return found if found.is_file() else None


def environment(program: pathlib.Path) -> Dict[str, str]:
    """Returns the environment for the program, with its library folder and torch's in LD_LIBRARY_PATH."""
    folders = [str(program.resolve().parent), str(pathlib.Path(torch.__file__).parent / "lib")]
    if os.environ.get("LD_LIBRARY_PATH"):
        folders.append(os.environ["LD_LIBRARY_PATH"])
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def build() -> Dict[str, Any]:
    """Returns the contents of diffattn_build.json next to the library, or {} if it does not exist."""
    try:
        return json.loads((path().parent / "diffattn_build.json").read_text())
    except FileNotFoundError:
        return {}


def _public(version: str) -> str:
    return version.split("+")[0]


def load() -> None:
    """Loads torch.ops.diffattn.*. Raises ImportError if the library is missing or built for another torch."""
    library = path()
    if not library.is_file():
        raise ImportError(
            f"diffattn: {library} is missing; install the package with `make python` or `pip install "
            "--no-build-isolation .`, or set DIFFATTN_LIBRARY to the path of the library.")
    built_for = build().get("torch")
    if built_for and _public(built_for) != _public(torch.__version__):
        raise ImportError(
            f"diffattn: built for torch {built_for}, but torch {torch.__version__} is installed; "
            "install diffattn again with `pip install --no-build-isolation .` in this environment.")
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"diffattn: {library}, built for {f'torch {built_for}' if built_for else 'an unknown torch'}, "
            f"does not load with torch {torch.__version__}: {error}") from error
