"""Where processes meet after torchrun has started them, for the first time or anew.

torchrun lends its workers a store that outlives them. What a lost group has written there, such as the addresses of
processes that are gone, is still there for the next group, which may read it before it is overwritten and wait
for ever (pytorch/pytorch#135712). So each group has a store of its own, in its first process; the lent one only
tells where that is, and an address at which nobody answers is an old one.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from onebit.errors import WorkError

KEY = "onebit/meeting"
PATIENCE = timedelta(minutes=5)


def join_group(backend: str, rank: int, count: int) -> None:
    """Connect this process with the others that torchrun started."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend)  # the store is the first process's already
        return
    lent = TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False
    )
    own = _host(lent, count) if rank == 0 else _find(lent)
    dist.init_process_group(backend, store=own, rank=rank, world_size=count)


def _host(lent: TCPStore, count: int) -> TCPStore:
    on_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == str(count)
    name = "127.0.0.1" if on_one_machine else _own_address()
    own = TCPStore(name, 0, is_master=True, wait_for_workers=False)
    lent.set(KEY, f"{name}:{own.port}")
    return own


def _own_address() -> str:
    """The address under which the machine that holds torchrun's store would see this one; nothing is sent."""
    target = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    family, kind, *_, address = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _find(lent: TCPStore) -> TCPStore:
    limit = time.monotonic() + PATIENCE.total_seconds()
    while time.monotonic() < limit:
        name, port = lent.get(KEY).decode().rsplit(":", 1)
        try:
            with socket.create_connection((name, int(port)), timeout=5):
                pass
        except OSError:
            time.sleep(0.1)  # of a group that is gone: the new one is about to write its own
            continue
        return TCPStore(name, int(port), is_master=False, wait_for_workers=False)
    raise WorkError("the first process of the group could not be found")
