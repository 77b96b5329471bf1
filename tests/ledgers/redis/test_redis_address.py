"""The ledger's URL: what it may say, what is refused and how, and that no password is ever shown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from semel.ledgers.redis import RedisLedger, profiles
from semel.ledgers.redis.url import parse_url
from semel.values.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "db"),
    [
        ("redis://", "one", (("localhost", 6379),), 0),
        ("redis://cache", "one", (("cache", 6379),), 0),
        ("redis://cache:7000/3", "one", (("cache", 7000),), 3),
        ("redis://cache?db=4", "one", (("cache", 6379),), 4),
        ("redis://[::1]:7000", "one", (("::1", 7000),), 0),
        ("rediss://cache", "one", (("cache", 6379),), 0),
        ("redis+cluster://a,b:7001", "cluster", (("a", 6379), ("b", 7001)), 0),
        ("rediss+cluster://a", "cluster", (("a", 6379),), 0),
        ("redis+sentinel://a,b:5000/main/2", "sentinel", (("a", 26379), ("b", 5000)), 2),
    ],
)
def test_valid_urls_are_parsed(url: str, kind: str, hosts: tuple[tuple[str, int], ...], db: int) -> None:
    address = parse_url(url)
    assert (address.kind, address.hosts, address.db) == (kind, hosts, db)
    assert (address.tls is not None) == url.startswith("rediss")


def test_a_socket_has_a_path() -> None:
    address = parse_url("unix:///run/a%20b.sock?db=2")
    assert (address.kind, address.path, address.db, address.hosts) == ("one", "/run/a b.sock", 2, ())


def test_every_option_is_parsed() -> None:
    address = parse_url(
        "redis+cluster://me:p%40ss@a?prefix=calls&strict=1&fsync=yes&timeout=1.5&pool=9&together=one,two"
    )
    assert (address.username, address.password) == ("me", "p@ss")
    assert (address.prefix, address.strict, address.fsync, address.timeout_s) == ("calls", 1, True, 1.5)
    assert (address.pool, address.together) == (9, ("one", "two"))
    tls = parse_url("rediss://a?ca=/ca.pem&cert=/c.pem&key=/k.pem&verify=none").tls
    assert tls is not None
    assert (tls["ssl_ca_certs"], tls["ssl_certfile"], tls["ssl_keyfile"]) == ("/ca.pem", "/c.pem", "/k.pem")
    assert (tls["ssl_cert_reqs"], tls["ssl_check_hostname"]) == ("none", False)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://h?poool=1", "'poool' db prefix"),
        ("redis://h?ca=/x", "'ca'"),
        ("redis://h/x", "database 'x'"),
        ("redis://h/1/2", "redis://host"),
        ("redis://a,b", "hosts"),
        ("redis://h:99999", "host:port"),
        ("redis://h:x", "host:port"),
        ("redis+cluster://h/3", "database 0"),
        ("redis+sentinel://h", "master-name"),
        ("redis://h?strict=-1", "strict=-1"),
        ("redis://h?strict=many", "strict=many"),
        ("redis://h?timeout=0", "timeout=0"),
        ("redis://h?pool=0", "pool=0"),
        ("redis://h?fsync=maybe", "fsync yes no"),
        ("redis://h?prefix={x}", "prefix"),
        ("redis://h?prefix=", "prefix"),
        ("rediss://h?verify=perhaps", "verify required none"),
        ("unix://relative", "unix:///path"),
        ("http://h", "redis://host"),
    ],
)
def test_errors_about_a_url_do_not_show_the_password(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_url(url)
    assert [word for word in words.split() if word not in str(told.value)] == []
    with pytest.raises(ConfigError) as told:
        parse_url(url.replace("://", "://me:s3cret@", 1))
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("password", ["p@ss#w0rd", "p@ss/w0rd", "p@ss?w0rd", "p#ss@w0rd"])
def test_a_password_that_breaks_the_url_is_not_taken_for_a_host(password: str) -> None:
    with pytest.raises(ConfigError, match="%40") as told:
        parse_url(f"redis://me:{password}@127.0.0.1:6379")
    assert not any(part in str(told.value) for part in ("w0rd", "ss:"))


def test_a_password_is_never_shown() -> None:
    ledger = RedisLedger.from_url("redis+sentinel://me:s3cret@a/main?sentinel_password=s3cret2")
    shown = f"{ledger!r} {vars(ledger)!r} {parse_url('redis://me:s3cret@a')!r} {ledger.traits!r}"
    assert "s3cret" not in shown


def test_a_missing_driver_is_reported_and_traits_are_listed_without_it() -> None:
    code = (
        "import sys; sys.modules['redis'] = None; sys.modules['redis.exceptions'] = None\n"
        "import semel.ledgers.redis as store\n"
        "print(len(store.profiles()))\n"
        "try:\n    store.RedisLedger\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.startswith(str(len(profiles())))
    assert "ConfigError" in said
    assert "semel[redis]" in said


def test_traits_depend_on_the_configuration_of_the_server() -> None:
    names = [traits.name for traits in profiles()]
    assert len(set(names)) == len(names)
    by_name = {traits.name: traits for traits in profiles()}
    assert by_name["Redis, no persistence"].loses.store_killed
    assert by_name["Redis, appendfsync everysec"].loses.power_loss
    assert not by_name["Redis, appendfsync always"].loses.power_loss
    assert by_name["Redis Cluster"].loses.failover
    assert by_name["Redis Cluster, strict"].loses.failover == ""
    assert all(not traits.transactional for traits in profiles())
    for url, name in (
        ("redis://a", "Redis"),
        ("redis+cluster://a?strict=1", "Redis Cluster, strict"),
        ("redis+sentinel://a/main?strict=1&fsync=yes", "Redis with Sentinel, strict and fsync"),
    ):
        assert RedisLedger.from_url(url).traits.name == name
