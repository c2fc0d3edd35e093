# SPDX-License-Identifier: Apache-2.0
"""Runs one verb in several processes, which torchrun starts.

    torchrun --nproc-per-node=4 -m diffattn train --config run.toml --out runs/a

Every process joins one group of torch.distributed (Gloo for tensors on the CPU, NCCL for those on a GPU) and runs the
verb on its part of the rows. docs/distributed.md describes it.
"""
import datetime
import os
import socket
import sys
import time
import uuid
from typing import List, Mapping, NoReturn, Sequence

import torch
import torch.distributed as dist
from diffattn_program import terminal, verbs

from diffattn import _full

#: Verbs that several processes can run together.
VERBS = ("train", "eval", "compare", "info", "bench step")
#: Seconds after which a process that waits for another one gives up; $DIFFATTN_TIMEOUT overrides it.
TIMEOUT = 60
#: These verbs communicate only at their end, and some processes get there much earlier than others.
PATIENT_VERBS = ("eval", "compare")
PATIENT_TIMEOUT = 30 * 24 * 3600


def runs_together(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """True if torchrun started this process for a verb that several processes run together."""
    together = any(list(words[:len(verb.split())]) == verb.split() for verb in VERBS)
    return together and is_started_by_torchrun(environment)


def is_started_by_torchrun(environment: Mapping[str, str]) -> bool:
    """True if the environment describes a job, as torch.distributed reads it. It may have one process."""
    return all(environment.get(name) for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"))


def timeout_of(environment: Mapping[str, str]) -> int:
    """Returns the seconds of $DIFFATTN_TIMEOUT, or TIMEOUT."""
    text = environment.get("DIFFATTN_TIMEOUT") or str(TIMEOUT)
    if not text.isdecimal() or int(text) == 0:
        raise RuntimeError(f"DIFFATTN_TIMEOUT: expected a number of seconds above 0, got {text!r}")
    return int(text)


def _use_gpu() -> str:
    """Makes the GPU of this process torch's current one, and returns its name among all machines; "" without a GPU."""
    if not torch.cuda.is_available():
        return ""
    index = int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    # Every process may see its GPU as number 0, so numbers do not tell GPUs apart.
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(index).uuid}"


def gpus_of_all(store: dist.Store, rank: int, size: int, own: str, timeout: datetime.timedelta) -> List[str]:
    """Tells all ranks the GPU of this one, and returns those of all, in the order of the ranks."""
    store.set(f"gpu/{rank}", own)
    keys = [f"gpu/{other}" for other in range(size)]
    store.wait(keys, timeout)
    return [store.get(key).decode() for key in keys]


def share_gpus(gpus: Sequence[str]) -> bool:
    """True if two processes have the same GPU, which NCCL refuses. All ranks get the same answer."""
    used = [gpu for gpu in gpus if gpu]
    return len(set(used)) < len(used)


def backend_of(gpus: Sequence[str], nccl: bool) -> str:
    """Returns torch's backends: Gloo for the CPU, and NCCL if torch has it and every process has a GPU of its own.

    Of the operations on GPU tensors that training needs, torch documents only broadcast and all-reduce for Gloo.
    """
    return "cpu:gloo,cuda:nccl" if all(gpus) and nccl and not share_gpus(gpus) else "cpu:gloo"


def _open_store(rank: int, size: int, timeout: datetime.timedelta) -> dist.Store:
    """Connects to the store where the ranks meet. Rank 0 serves it, unless torchrun does."""
    host, port_text = os.environ["MASTER_ADDR"], os.environ.get("MASTER_PORT", "")
    if not port_text.isdecimal():
        raise RuntimeError(f"MASTER_PORT: expected the port of rank 0, got {port_text!r}")
    port = int(port_text)
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = dist.TCPStore(host, port, size, serves, timeout, wait_for_workers=False)
    except RuntimeError as error:  # DistNetworkError
        first = str(error).splitlines()[0]
        if serves and "EADDRINUSE" in str(error):
            raise RuntimeError(f"MASTER_PORT: port {port} of {host} is in use by another process; choose another one "
                               f"(torchrun --master-port)") from error
        if serves:
            raise RuntimeError(f"MASTER_ADDR: could not listen at {host}:{port} ({first})") from error
        raise RuntimeError(f"rank 0 is missing: nobody answered at {host}:{port} within "
                           f"{timeout.total_seconds():.0f} s ({first})") from error
    return store


def _answer_ranks(store: dist.Store, attempt: str, size: int, deadline: float) -> None:
    """Tells all ranks that ask the name of this attempt, as rank 0, until all are here or the time is over."""
    asked, seen = set(), 0  # questions without an answer
    while store.add(f"{attempt}/present", 0) < size and time.monotonic() < deadline:
        count = store.add("questions", 0)
        asked.update(range(seen + 1, count + 1))
        seen = count
        for question in [number for number in asked if store.check([f"question/{number}"])]:
            store.set(f"answer/{store.get(f'question/{question}').decode()}", attempt)
            asked.remove(question)
        time.sleep(0.02)


def _attempt_name(store: dist.Store, deadline: float) -> str:
    """Asks rank 0 for the name of this attempt. Raises RuntimeError if it does not answer."""
    token = uuid.uuid4().hex  # so that nobody takes the answer to a process of an earlier attempt
    store.set(f"question/{store.add('questions', 1)}", token)
    store.wait([f"answer/{token}"], _time_until(deadline))
    return store.get(f"answer/{token}").decode()


def _time_until(deadline: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _meet(whole_store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> dist.Store:
    """Waits until all ranks have joined, and returns a store for them. Raises RuntimeError that names missing ranks.

    torchrun may serve one store to all attempts of a job, and its agents on several machines count restarts apart. So
    rank 0 gives every attempt a name of its own, below which nobody finds keys of an earlier attempt.
    """
    store = dist.PrefixStore("diffattn", whole_store)
    deadline = time.monotonic() + timeout.total_seconds()
    attempt = uuid.uuid4().hex if rank == 0 else ""
    try:
        attempt = attempt or _attempt_name(store, deadline)
        here = [f"{attempt}/here/{other}" for other in range(size)]
        store.set(here[rank], "yes")
        store.add(f"{attempt}/present", 1)
        if rank == 0:
            _answer_ranks(store, attempt, size, deadline)
        store.wait(here, _time_until(deadline))
    except RuntimeError as error:  # DistStoreError, DistNetworkError
        missing = ["0"]
        try:
            store.check(["questions"])
            if attempt:
                missing = [str(other) for other in range(size) if not store.check([here[other]])]
        except RuntimeError:
            raise RuntimeError("rank 0 has ended while this one waited for the others") from error
        if missing:
            raise RuntimeError(f"rank {', '.join(missing)} of {size} did not come to {os.environ['MASTER_ADDR']}:"
                               f"{os.environ['MASTER_PORT']} within {timeout.total_seconds():.0f} s") from error
    return dist.PrefixStore(f"diffattn/{attempt}", whole_store)


def _join(verb: str) -> None:
    """Joins the process groups of this job."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = datetime.timedelta(seconds=timeout_of(os.environ))
    store = _meet(_open_store(rank, size, timeout), rank, size, timeout)
    own = _use_gpu()
    patience = datetime.timedelta(seconds=PATIENT_TIMEOUT) if verb in PATIENT_VERBS else timeout
    try:
        gpus = gpus_of_all(store, rank, size, own, timeout)
        shared, backend = share_gpus(gpus), backend_of(gpus, dist.is_nccl_available())
        if shared and rank == 0:
            count = len(set(gpus) - {""})
            terminal.write(f"diffattn: {size} processes share {count} GPU{'s' * (count > 1)}, so their sums go through "
                           "host memory\n")
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
        # Exchanges of tokens have their own group, so that they need not wait for sums of gradients.
        second = dist.new_group(timeout=patience)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"the {size} processes could not connect to each other ({str(error).splitlines()[0]})"
                           ) from error
    torch.ops.diffattn.join_process_group(dist.group.WORLD.group_name, second.group_name, shared)


def _stop(message: str, code: int = 1) -> NoReturn:
    terminal.write(message + "\n")
    # Threads of the group may wait for other processes, so this one does not wait for them.
    os._exit(code)


def main(words: Sequence[str]) -> NoReturn:
    """Runs a verb as one process of a group and exits with its code."""
    library = _full.library()
    where = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    try:
        _join(words[0])
    except RuntimeError as error:
        _stop(f"diffattn: {where}: {error}")
    signals = verbs.Signals()
    code, text = verbs.run(library, words[0], list(words[1:]), signals)
    sys.stdout.flush()
    if code in verbs.EXIT_CODES:
        _stop(f"diffattn: {where}: {text.removeprefix('diffattn: ')}", verbs.EXIT_CODES[code])
    if "--json" in words and int(os.environ["RANK"]) == 0:
        terminal.write(text + "\n", sys.stdout)
    torch.ops.diffattn.join_process_group("", "")
    dist.destroy_process_group()
    sys.exit(code)
