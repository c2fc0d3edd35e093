# SPDX-License-Identifier: Apache-2.0
"""The torch versions that a wheel of this package works with, for its metadata: pip then picks one of them.

scikit-build-core loads this file (pyproject.toml). $DIFFATTN_TORCHES lists the minor versions for which the wheel has
libraries ("2.11 2.13"); without it, the wheel is built for the torch of the building Python.
"""
import importlib.metadata
import os
from typing import Any, List, Mapping


def requirement(minors: List[str]) -> str:
    """Returns a requirement that allows these minor versions only: "torch>=2.11,<2.14,!=2.12.*"."""
    numbers = sorted(tuple(int(part) for part in minor.split(".")) for minor in minors)
    first, last = numbers[0], numbers[-1]
    if first[0] != last[0] or any(len(number) != 2 for number in numbers):
        raise ValueError(f"expected minor versions of one major version, such as 2.11, got {minors}")
    if first == last:
        return f"torch=={first[0]}.{first[1]}.*"
    gaps = [f"!={first[0]}.{minor}.*" for minor in range(first[1], last[1]) if (first[0], minor) not in numbers]
    return ",".join([f"torch>={first[0]}.{first[1]}", f"<{last[0]}.{last[1] + 1}", *gaps])


def dynamic_metadata(field: str, settings: Mapping[str, Any]) -> List[str]:
    """Returns the dependencies of the wheel."""
    assert field == "dependencies" and not settings
    given = os.environ.get("DIFFATTN_TORCHES", "").split()
    return [requirement(given or [".".join(importlib.metadata.version("torch").split(".")[:2])])]
