# SPDX-License-Identifier: Apache-2.0
"""Training by several processes, which torchrun starts.

    torchrun --nproc-per-node=4 -m diffattn train --config run.toml --out runs/a

Every process joins one group of torch.distributed (Gloo for tensors on the CPU, NCCL for those on a GPU) and runs the
verb on its part of the rows. docs/distributed.md describes it.
"""
import datetime
import os
import sys
from typing import Mapping, NoReturn, Sequence

import torch
import torch.distributed as dist
from diffattn_program import verbs

from diffattn import _full

#: Verbs that several processes can run together.
VERBS = ("train",)
#: Seconds after which a process that waits for another one gives up.
TIMEOUT = 60


def is_started_by_torchrun(environment: Mapping[str, str]) -> bool:
    """True if the variables are there from which torch.distributed makes a group of several processes."""
    return int(environment.get("WORLD_SIZE") or 1) > 1 and "RANK" in environment and "MASTER_ADDR" in environment


def _join() -> str:
    """Makes the group of all processes and returns where this one is in it."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "gloo"
    if torch.cuda.is_available():
        if not dist.is_nccl_available():
            raise RuntimeError("this torch has no NCCL, which several GPUs need; install a torch with CUDA")
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    try:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=TIMEOUT))
    except (RuntimeError, ValueError) as error:  # DistStoreError is a RuntimeError
        address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '?')}"
        raise RuntimeError(f"the {size} processes did not find each other at {address} within {TIMEOUT} s; is one "
                           f"missing, or the port in use? ({str(error).splitlines()[0]})") from error
    torch.ops.diffattn.join_process_group(dist.group.WORLD.group_name)
    return f"rank {rank} of {size}"


def _stop(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    # Threads of the group may wait for other processes, so this one does not wait for them.
    os._exit(code)


def main(words: Sequence[str]) -> NoReturn:
    """Runs a verb as one process of a group and exits with its code."""
    library = _full.library()
    where = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    try:
        _join()
    except RuntimeError as error:
        _stop(f"diffattn: {where}: {error}")
    signals = verbs.Signals()
    code, text = verbs.run(library, words[0], list(words[1:]), signals)
    sys.stdout.flush()
    if code in (verbs.FAILED, verbs.WRONG_USE):
        _stop(f"diffattn: {where}: {text.removeprefix('diffattn: ')}", 1 if code == verbs.FAILED else 2)
    if "--json" in words and int(os.environ["RANK"]) == 0:
        print(text, flush=True)
    torch.ops.diffattn.join_process_group("")
    dist.destroy_process_group()
    sys.exit(code)
