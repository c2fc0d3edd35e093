# SPDX-License-Identifier: Apache-2.0
"""Loads the operators. Raises ImportError if there are none for the installed torch."""
import json
import os
import pathlib
from typing import Any, Dict, Optional

import diffattn_program
import torch

OPERATORS, FULL = "libdiffattn.so", "libdiffattn_python.so"


def folder() -> pathlib.Path:
    """Returns the folder with the libraries for this torch, which may not exist."""
    return diffattn_program.folder_for(torch.__version__)


def path() -> pathlib.Path:
    """Returns the operator library: $DIFFATTN_LIBRARY, or the one for this torch."""
    return pathlib.Path(os.environ.get("DIFFATTN_LIBRARY") or folder() / OPERATORS)


def program() -> Optional[pathlib.Path]:
    """Returns the program: $DIFFATTN_PROGRAM, or the one for this torch, or None."""
    return diffattn_program.program(torch.__version__)


def build() -> Dict[str, Any]:
    """Returns the contents of diffattn_build.json next to the library, or {} if it does not exist."""
    try:
        return json.loads((path().parent / "diffattn_build.json").read_text())
    except FileNotFoundError:
        return {}


def load() -> None:
    """Loads torch.ops.diffattn.*. Raises ImportError if the library is missing or built for another torch."""
    library, given = path(), os.environ.get("DIFFATTN_LIBRARY")
    if not library.is_file():
        raise ImportError(f"diffattn: DIFFATTN_LIBRARY: {library} is missing" if given else
                          diffattn_program.other_torch(torch.__version__))
    built_for = build().get("torch")
    if built_for and diffattn_program.minor(built_for) != diffattn_program.minor(torch.__version__):
        raise ImportError(f"diffattn: {library} was built for torch {built_for}, but torch {torch.__version__} is "
                          "installed; name another library or install diffattn for this torch.")
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"diffattn: {library}, built for {f'torch {built_for}' if built_for else 'an unknown torch'}, "
            f"does not load with torch {torch.__version__}: {error.__cause__ or error}") from error
