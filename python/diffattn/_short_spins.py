# SPDX-License-Identifier: Apache-2.0
"""Loads torch so that its OpenMP threads spin briefly before they sleep.

libgomp reads GOMP_SPINCOUNT when torch loads it. Its default lets a waiting thread spin for several
milliseconds, which makes torch many times slower beside another busy program.
"""
import os
import sys


def load_torch() -> None:
    """Imports torch with GOMP_SPINCOUNT=1000, and removes the variable again.

    Does nothing if torch is loaded, or if the environment says how threads wait.
    """
    if "torch" in sys.modules or {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        return
    os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ["GOMP_SPINCOUNT"]
