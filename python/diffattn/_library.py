# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the operator library, once, and refuses a torch it was not built for."""
import json
import os
import pathlib
from typing import Any, Dict, Optional

import torch

PACKAGE = pathlib.Path(__file__).resolve().parent
NAME = "libdiffattn.so"
NO_PROGRAM = ("diffattn: this installation holds the operators only; build the program with `make` and "
              "install it with `make python`, or name it in DIFFATTN_PROGRAM.")


def path() -> pathlib.Path:
    """The operator library: $DIFFATTN_LIBRARY, or the one beside this file."""
    return pathlib.Path(os.environ.get("DIFFATTN_LIBRARY") or PACKAGE / NAME)


def program() -> Optional[pathlib.Path]:
    """The program: $DIFFATTN_PROGRAM, or the one beside the library; None where there is none."""
    given = os.environ.get("DIFFATTN_PROGRAM")
    found = pathlib.Path(given) if given else path().parent / "diffattn"
    return found if found.is_file() else None


def environment(program: pathlib.Path) -> Dict[str, str]:
    """For running the program: its own libraries lie beside it, torch's are those of this Python."""
    folders = [str(program.resolve().parent), str(pathlib.Path(torch.__file__).parent / "lib")]
    if os.environ.get("LD_LIBRARY_PATH"):
        folders.append(os.environ["LD_LIBRARY_PATH"])
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


def build() -> Dict[str, Any]:
    """What the build wrote down beside the library; empty where it did not."""
    try:
        return json.loads((path().parent / "diffattn_build.json").read_text())
    except FileNotFoundError:
        return {}


def _public(version: str) -> str:
    return version.split("+")[0]


def load() -> None:
    """Loads torch.ops.diffattn.*; ImportError when the library is missing or of another torch."""
    library = path()
    if not library.is_file():
        raise ImportError(
            f"diffattn: {library} is missing; install the package with `make python` or `pip install "
            "--no-build-isolation .`, or name the library in DIFFATTN_LIBRARY.")
    built_for = build().get("torch")
    if built_for and _public(built_for) != _public(torch.__version__):
        raise ImportError(
            f"diffattn: built for torch {built_for}, but torch {torch.__version__} is installed; "
            "install diffattn again with `pip install --no-build-isolation .` in this environment.")
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"diffattn: {library}, built for torch {built_for or 'of unknown version'}, does not "
            f"load with torch {torch.__version__}: {error}") from error
