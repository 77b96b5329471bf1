"""The tests that prove each guarantee, by store, fault and effect.

Tests are named as pytest does, from the root of the repository. `tests/test_guarantees.py` fails when a promise has no
test here, or when a test that is named here is run neither by `make test` nor by `make proof`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from semel.ports import Traits
from semel.values.effect import EFFECTS, forgets


class Proof(NamedTuple):
    test: str
    shows: str = ""  # a limit of the proof, if it is weaker than the fault itself


Proofs: TypeAlias = tuple[Proof, ...]


class Shown(NamedTuple):
    """The tests of each effect. `forgets`: they run on a store that has lost writes."""

    by_effect: Mapping[str, Proofs]
    forgets: bool = False

    def but(self, **others: Proof) -> Shown:
        """The same, with other tests for some effects."""
        changed = {effect: (proof,) for effect, proof in others.items()}
        return Shown({**self.by_effect, **changed}, self.forgets)


def every(*proofs: Proof, forgets: bool = False) -> Shown:
    """Tests that run all effects."""
    return Shown(dict.fromkeys(EFFECTS, proofs), forgets)


def each(path: str, **tests: str) -> Shown:
    """A test for each effect, on a store that has lost writes."""
    return Shown({effect: (Proof(f"{path}{test}"),) for effect, test in tests.items()}, forgets=True)


WORKERS = "test_workers_killed_under_load_lose_nothing"
STORE = "test_a_store_killed_under_load_comes_back_with_everything_it_answered"
MESSAGES = "test_no_single_lost_message_loses_or_doubles_an_effect"

FORGOTTEN = each(  # by any store: the engine treats it as an event that it has never seen
    "tests/faults/test_forgetting.py::test_a_forgotten_",
    keyed="keyed_event_runs_again_with_the_same_key",
    fenced="fenced_event_may_get_its_token_again",
    retry="retry_event_runs_again",
    park="park_event_doubles",
)
(TOKEN_AGAIN,) = FORGOTTEN.by_effect["fenced"]

STOPPED = "tests/proof/test_stopped_process.py::"
STALL_PROOFS: Proofs = (
    Proof(f"{STOPPED}test_a_stalled_process_without_a_check_acts_when_it_wakes_up"),
    Proof(f"{STOPPED}test_a_stalled_process_that_checks_does_not_act_when_it_wakes_up"),
    Proof(f"{STOPPED}test_a_stalled_transaction_that_checks_is_rolled_back_and_happens_once"),
    Proof(f"{STOPPED}test_a_probe_cannot_make_up_for_a_holder_that_does_not_check"),
    Proof(f"{STOPPED}test_a_probe_that_truthfully_answers_not_yet_doubles_no_effect_of_a_holder_that_checks"),
    Proof(f"{STOPPED}test_a_process_that_stalls_before_its_handler_does_not_run_it"),
)

# ------------------------------------------------------------------------------------------------------------- SQLite

CRASHES = every(
    Proof("tests/proof/test_crash_points.py::test_a_crash_at_any_boundary_keeps_the_promise"),
    Proof("tests/proof/test_crash_points.py::test_a_crash_while_recovering_from_a_crash_keeps_the_promise"),
)
POWER = "tests/faults/test_power_loss.py::"
UNSYNCED = Proof(f"{POWER}test_without_a_sync_for_each_answer_the_newest_are_lost_and_never_half_of_one")

# --------------------------------------------------------------------------------------------------------- PostgreSQL

POSTGRES = "tests/faults/test_postgres_faults.py::"
FAILOVER = "tests/faults/test_postgres_failover.py::"
POSTGRES_WORKER = every(Proof(f"{POSTGRES}TestPostgres::{WORKERS}"), Proof(f"{POSTGRES}TestPostgres::{MESSAGES}"))
POSTGRES_STORE = every(Proof(f"{POSTGRES}TestPostgres::{STORE}"))
POSTGRES_POWER = every(
    Proof(
        "tests/faults/test_synced.py::test_postgres_syncs_its_log_for_each_answer",
        "the power is not cut; the test checks the settings, and that the log is synced for each answer",
    )
)
REPLICA_BEHIND = Proof(
    f"{FAILOVER}test_an_asynchronous_replica_loses_transactions_doubles_park_and_repeats_keyed_with_the_same_key"
)
ASYNCHRONOUS = every(REPLICA_BEHIND, forgets=True).but(fenced=TOKEN_AGAIN)
COMMIT_OFF = FORGOTTEN.but(
    transaction=Proof("tests/faults/test_synced.py::test_postgres_without_synchronous_commit_does_not")
)

# -------------------------------------------------------------------------------------------------------------- Redis

REDIS = "tests/faults/test_redis_faults.py::TestRedis::"
REDIS_WORKER = every(Proof(f"{REDIS}{WORKERS}"), Proof(f"{REDIS}{MESSAGES}"))
ON_ONE = "on one server"
NODES_WORKER = every(Proof(f"{REDIS}{WORKERS}", ON_ONE), Proof(f"{REDIS}{MESSAGES}", ON_ONE))
REDIS_STORE = every(Proof(f"{REDIS}{STORE}"))
REDIS_POWER = every(
    Proof(
        "tests/faults/test_synced.py::test_redis_writes_each_answer_to_its_log_and_is_configured_to_sync_it",
        "the power is not cut; the test checks the setting, and that each answer is in the log",
    )
)
NODES_STORE = every(Proof(f"{REDIS}{STORE}", f"{ON_ONE}, with appendfsync always"))
NODES_POWER = every(
    Proof(
        "tests/ledgers/redis/test_redis_faults.py::test_strict_with_its_replica_confirms_every_write",
        "the power is not cut; each answer is confirmed by WAITAOF, and the replica has it when the master is killed",
    )
)
REDIS_FORGETS = each(
    "tests/faults/test_redis_faults.py::TestForgetfulRedis::test_",
    keyed="keyed_is_repeated_with_the_same_key",
    fenced="fenced_is_repeated_with_a_higher_token",
    retry="retry_is_repeated",
    park="park_doubles",
)
SYNC_UNDER_WAY = Proof(
    "tests/faults/test_redis_everysec.py::test_a_server_killed_while_it_syncs_forgets_what_it_has_answered"
)
CLUSTER = "tests/ledgers/redis/test_cluster_faults.py::"
DYING_MASTER = Proof(f"{CLUSTER}test_a_master_that_dies_before_its_replica_has_heard_doubles_a_grant_unless_strict")
CLUSTER_FORGETS = REDIS_FORGETS.but(fenced=DYING_MASTER, park=DYING_MASTER)
CLUSTER_STRICT = every(DYING_MASTER, Proof(f"{CLUSTER}test_a_graceful_failover_under_load_loses_and_doubles_nothing"))

SENTINEL_STRICT = every(
    Proof("tests/ledgers/redis/test_redis_sentinel.py::test_the_next_master_has_every_write_that_strict_confirmed")
)

# ----------------------------------------------------------------------------------------------------------- DynamoDB

DYNAMO = "tests/faults/test_dynamodb_faults.py::"
DYNAMO_WORKER = every(Proof(f"{DYNAMO}TestDynamo::{WORKERS}"), Proof(f"{DYNAMO}TestDynamo::{MESSAGES}"))
DYNAMO_SERVICE = every(
    Proof(
        f"{DYNAMO}TestDynamo::{MESSAGES}",
        "the service cannot be killed by a test, so its durability is the promise of AWS; the test proves that nothing "
        "is lost or doubled when an answer does not arrive",
    )
)
DYNAMO_FORGETS = FORGOTTEN.but(fenced=Proof(f"{DYNAMO}test_a_key_that_is_forgotten_gets_a_higher_token"))

# ------------------------------------------------------------------------------------------------------------ the table

SHOWN: Mapping[str, Mapping[str, Shown]] = {  # by store and fault
    "SQLite": {
        "worker killed": CRASHES,
        "store killed": CRASHES,
        "power loss": every(Proof(f"{POWER}test_a_power_loss_takes_nothing_that_was_answered")),
    },
    "SQLite, synchronous=normal": {
        "worker killed": CRASHES,
        "store killed": CRASHES,
        "power loss": FORGOTTEN.but(transaction=UNSYNCED),
    },
    "memory": {"worker killed": FORGOTTEN, "store killed": FORGOTTEN, "power loss": FORGOTTEN},
    "PostgreSQL": {
        "worker killed": POSTGRES_WORKER,
        "store killed": POSTGRES_STORE,
        "power loss": POSTGRES_POWER,
        "failover": ASYNCHRONOUS,
    },
    "PostgreSQL, synchronous replica": {
        "worker killed": POSTGRES_WORKER,
        "store killed": POSTGRES_STORE,
        "power loss": POSTGRES_POWER,
        "failover": every(Proof(f"{FAILOVER}test_a_synchronous_replica_takes_over_under_load_and_has_everything")),
    },
    "PostgreSQL, synchronous_commit=off": {
        "worker killed": POSTGRES_WORKER,
        "store killed": COMMIT_OFF,
        "power loss": COMMIT_OFF,
        "failover": ASYNCHRONOUS,
    },
    "Redis, no persistence": {
        "worker killed": REDIS_WORKER,
        "store killed": REDIS_FORGETS,
        "power loss": REDIS_FORGETS,
    },
    "Redis, snapshots only": {
        "worker killed": REDIS_WORKER,
        "store killed": REDIS_FORGETS,
        "power loss": REDIS_FORGETS,
    },
    "Redis, appendfsync everysec": {
        "worker killed": REDIS_WORKER,
        "store killed": REDIS_FORGETS.but(park=SYNC_UNDER_WAY),
        "power loss": REDIS_FORGETS,
    },
    "Redis, appendfsync always": {
        "worker killed": REDIS_WORKER,
        "store killed": REDIS_STORE,
        "power loss": REDIS_POWER,
    },
    "Redis with Sentinel": {
        "worker killed": NODES_WORKER,
        "store killed": REDIS_FORGETS,
        "power loss": REDIS_FORGETS,
        "failover": REDIS_FORGETS,
    },
    "Redis with Sentinel, strict": {
        "worker killed": NODES_WORKER,
        "store killed": REDIS_FORGETS,
        "power loss": REDIS_FORGETS,
        "failover": SENTINEL_STRICT,
    },
    "Redis Cluster": {
        "worker killed": NODES_WORKER,
        "store killed": REDIS_FORGETS,
        "power loss": REDIS_FORGETS,
        "failover": CLUSTER_FORGETS,
    },
    "Redis Cluster, strict": {
        "worker killed": NODES_WORKER,
        "store killed": REDIS_FORGETS,
        "power loss": REDIS_FORGETS,
        "failover": CLUSTER_STRICT,
    },
    "Redis Cluster, strict and fsync": {
        "worker killed": NODES_WORKER,
        "store killed": NODES_STORE,
        "power loss": NODES_POWER,
        "failover": CLUSTER_STRICT,
    },
    "DynamoDB": {
        "worker killed": DYNAMO_WORKER,
        "store killed": DYNAMO_SERVICE,
        "power loss": DYNAMO_SERVICE,
        "failover": DYNAMO_SERVICE,
    },
    "DynamoDB, global table": {
        "worker killed": DYNAMO_WORKER,
        "store killed": DYNAMO_SERVICE,
        "power loss": DYNAMO_SERVICE,
        "failover": DYNAMO_FORGETS,
    },
}


def proofs_of(store: Traits, effect: str, fault: str) -> Proofs:
    """The tests behind one cell of the guarantees page: this effect on this store under this fault."""
    shown = SHOWN.get(store.name, {}).get(fault)
    if shown is None or shown.forgets != bool(forgets(store, fault)):
        return ()
    return shown.by_effect.get(effect, ())
