"""The `client` argument as users pass it, and what its workers answer when they are asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from headfit._base.arguments import shown
from headfit.errors import InputError


def check_client(client: Any) -> None:
    """Raise an InputError unless this is a synchronous client of Dask that is connected."""
    # Nobody has a client without having imported its package. headfit itself never does.
    distributed: Any = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        raise InputError(f"client must be a dask.distributed.Client, or None; got {shown(client)}")
    if client.asynchronous:
        raise InputError("client must be synchronous; got a Client with asynchronous=True")
    if client.status != "running":
        raise InputError(f"client must be connected to a scheduler; it is {client.status!r}")


def answers(client: Any, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """Return what a function returns on each worker, or the exception that it raises there.

    A worker that leaves the cluster before it answers is left out.
    """
    found = client.run(function, *given, on_error="return")
    present = client.nthreads()
    return {
        worker: answer
        for worker, answer in found.items()
        if worker in present or not isinstance(answer, Exception)
    }
