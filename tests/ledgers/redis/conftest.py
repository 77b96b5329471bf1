"""One server and one Cluster for all tests of a process; each test has keys of its own under a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.servers.process import NoServer, given_url, not_here
from tests.support.servers.valkey import Valkey
from tests.support.servers.valkey_cluster import ValkeyCluster


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = given_url("REDIS")
    if given is not None:
        yield given
        return
    try:
        server = Valkey(tmp_path_factory.mktemp("valkey"))
        server.start()
    except NoServer as error:
        not_here(error)
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    """A Cluster that may be failed over and resharded, not killed."""
    try:
        cluster = ValkeyCluster(tmp_path_factory.mktemp("cluster"))
        cluster.start()
    except NoServer as error:
        not_here(error)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def cluster_url(request: pytest.FixtureRequest) -> str:
    given = given_url("REDIS_CLUSTER")
    if given is not None:
        return given
    cluster: ValkeyCluster = request.getfixturevalue("cluster")
    return cluster.url
