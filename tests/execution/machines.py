"""A real Ray cluster of two machines, which are processes here with folders of their own."""

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SMALL = 80 << 20
"""Bytes of an object store that take no room from others."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A head without cores of its own, and two machines with one each, by their folders; in the soak only."""
    if not os.environ.get("MLE_STAR_SOAK"):
        pytest.skip("a cluster takes a while to start: make soak")
    with two_machines(str(tmp_path_factory.mktemp(name)) for name in ("one", "two")) as made:
        yield made


@contextmanager
def two_machines(folders: Iterable[str]) -> Iterator[dict[str, Any]]:
    """A head without cores of its own and two machines with one each, by their folders, with this process connected."""
    import ray

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made, machines = _started(list(folders), port)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield {"cluster": made, "machines": machines, "client": f"ray://127.0.0.1:{port}"}
    finally:
        ray.shutdown()
        made.shutdown()


def _started(folders: list[str], port: int, tries: int = 5) -> tuple[Any, dict[str, Any]]:
    """Ray gives a machine half a minute to start, which may be too little where others work, too."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "ray_client_server_port": port, "object_store_memory": SMALL, "include_dashboard": False}
    made: Any = None
    try:
        made = Cluster(initialize_head=True, head_node_args=head)
        own = {folder: {"MLE_STAR_NODE_DIR": folder} for folder in folders}
        return made, {f: made.add_node(num_cpus=1, env_vars=env, object_store_memory=SMALL) for f, env in own.items()}
    except Exception as error:
        if made is not None:
            made.shutdown()
        if tries == 1 or "timed out during startup" not in str(error):
            raise
        return _started(folders, port, tries - 1)
