"""Bugs of the stores for more than one machine, planted like the others."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEDGERS = "ledgers"
SETTLE_SQL = f"{LEDGERS}/postgres/settle.sql"
PG_CLAIMING = f"{LEDGERS}/postgres/claims.py"
GROUPS = f"{LEDGERS}/postgres/transaction.py"
CLAIM_LUA = f"{LEDGERS}/redis/lua/claim.lua"
SETTLE_LUA = f"{LEDGERS}/redis/lua/settle.lua"
RENEW_LUA = f"{LEDGERS}/redis/lua/renew.lua"
DISPATCH = f"{LEDGERS}/redis/dispatch.py"
NODE = f"{LEDGERS}/redis/topology.py"
DYNAMO_CLAIMING = f"{LEDGERS}/dynamodb/claims.py"
DYNAMO_SETTLING = f"{LEDGERS}/dynamodb/claims.py"
DYNAMO_ITEMS = f"{LEDGERS}/dynamodb/items.py"
DYNAMO_TRANSACTION = f"{LEDGERS}/dynamodb/transaction.py"
LETTERBOX = "core/dead_letter_store.py"
ENGINE = "core/engine.py"

POSTGRES = "tests/ledgers/postgres"
POSTGRES_LAWS = f"{POSTGRES}/test_postgres_laws.py::TestPostgres"
REDIS = "tests/ledgers/redis"
REDIS_LAWS = f"{REDIS}/test_redis_laws.py::TestRedisLedger"
DYNAMO = "tests/ledgers/dynamodb"
DYNAMO_LAWS = f"{DYNAMO}/test_dynamodb_laws.py::TestDynamo"
LETTERS_ELSEWHERE = "tests/stores/dead_letter_store/test_crashes_between_stores.py"

STORE_MUTANTS = [
    # ------------------------------------------------------------------------------------------------- PostgreSQL
    Mutant(
        "PostgreSQL settles without the token",
        SETTLE_SQL,
        "    where t.digest = a.digest and t.token = a.token and t.state = 1\n    returning a.ordinal",
        "    where t.digest = a.digest and t.token >= 0 * a.token and t.state = 1\n    returning a.ordinal",
        f"{POSTGRES_LAWS}::test_a_stale_owner_can_change_nothing",
    ),
    Mutant(
        "PostgreSQL settles what is left of a lease that lost an alias",
        SETTLE_SQL,
        "having count(*) = max(keys)",
        "having count(*) > 0",
        f"{POSTGRES_LAWS}::test_the_loser_of_an_alias_can_change_nothing",
    ),
    Mutant(
        "PostgreSQL keeps the aliases of an unclaimed retry for their own retention",
        SETTLE_SQL,
        "        retention_ms = case when w.ending <= 3 then t.retention_ms else w.own_retention_ms end,\n",
        "",
        f"{POSTGRES_LAWS}::test_purge_forgets_an_unclaimed_retry_with_all_its_aliases",
    ),
    Mutant(
        "a late settle frees a subject that another acts on",
        SETTLE_SQL,
        "holder = case when t.token = excluded.token then null else t.holder end",
        "holder = null",
        f"{POSTGRES_LAWS}::test_a_late_settle_does_not_free_a_subject_that_another_acts_on",
    ),
    Mutant(
        "PostgreSQL tells a new life's attempts after those of the one before",
        f"{LEDGERS}/postgres/claim.sql",
        "attempt_log = a.attempt_log\nfrom",
        "attempt_log = coalesce(a.attempt_log, t.attempt_log)\nfrom",
        f"{POSTGRES_LAWS}::test_the_attempt_log_starts_empty_after_the_retention_also_without_a_purge",
    ),
    Mutant(
        "PostgreSQL grants all copies in one batch",
        PG_CLAIMING,
        "if token is not None and first[item.digest] == at:",
        "if token is not None:",
        f"{POSTGRES_LAWS}::test_duplicates_inside_one_batch_are_decided_in_order",
    ),
    Mutant(
        "a transaction's writes stay though its handler failed",
        GROUPS,
        'await self._execute(connection, f"rollback to savepoint {SAVEPOINT}")',
        "pass",
        f"{POSTGRES}/test_postgres_engine.py::test_only_the_failing_transaction_of_a_batch_is_undone",
    ),
    Mutant(
        "a transaction inherits the settings of the one before",
        GROUPS,
        'RESET = "reset session authorization; reset all"',
        'RESET = "reset session authorization"',
        f"{POSTGRES}/test_postgres_transactions.py::test_settings_of_one_handler_do_not_affect_another",
    ),
    Mutant(
        "a commit whose answer is lost is taken for a rollback",
        GROUPS,
        "await asyncio.gather(*[self._resolve_lost(member, settlement, error) for member, settlement in kept])",
        "pass",
        f"{POSTGRES}/test_postgres_transactions.py::test_a_commit_whose_reply_is_lost_is_checked",
    ),
    # ------------------------------------------------------------------------------------------------------ Redis
    Mutant(
        "Redis's tokens know nothing of the time",
        CLAIM_LUA,
        "local token = math.max(last, now * 2048 + residue - step)",
        "local token = math.max(last, residue)",
        f"{REDIS}/test_redis_faults.py::test_without_persistence_a_killed_server_loses_keys_and_tokens_still_grow",
    ),
    Mutant(
        "Redis refuses a claim by its own lost answer",
        CLAIM_LUA,
        "if state == LEASED and sub(record, NONCE, NONCE + 7) == own_nonce then",
        "if state == WAITING and sub(record, NONCE, NONCE + 7) == own_nonce then",
        f"{REDIS}/test_redis_faults.py::test_a_claim_whose_reply_was_lost_finds_its_own_grant",
    ),
    Mutant(
        "Redis answers with the attempts that came before the result",
        SETTLE_LUA,
        "local about = sub(record, ATTEMPTS, live_payload_at(record) - 1)",
        "local about = sub(record, ATTEMPTS)",
        f"{REDIS_LAWS}::test_what_succeeds_at_last_answers_as_if_it_had_at_once",
    ),
    Mutant(
        "Redis leaves the copies of what it is forced to repeat",
        CLAIM_LUA,
        "local place = at > 1 and ALIAS or #keys > 1 and COPIED or 0",
        "local place = at > 1 and ALIAS or 0",
        f"{REDIS}/test_redis_dead_letters.py::TestOneServer::test_a_finished_event_is_replayed_only_by_force",
    ),
    Mutant(
        "Redis settles without the token",
        SETTLE_LUA,
        "return record and string.find(record, token, 2, true) == 2",
        "return record and #token > 0",
        f"{REDIS_LAWS}::test_a_stale_owner_can_change_nothing",
    ),
    Mutant(
        "Redis renews what has ended",
        RENEW_LUA,
        "held = held and byte(records[from]) % 8 == LEASED",
        "held = held and true",
        f"{REDIS_LAWS}::test_a_final_outcome_stays",
    ),
    Mutant(
        "strict mode takes any number of replicas for enough",
        DISPATCH,
        "return bool(counts[0] >= 1 and counts[1] >= self._address.strict)",
        "return bool(counts[0] >= 1)",
        f"{REDIS}/test_redis_faults.py::test_strict_without_replicas_refuses_and_releases",
    ),
    Mutant(
        "two exchanges share a connection",
        NODE,
        "connection = self._idle.pop() if self._idle else await self._connect()",
        "connection = self._idle[-1] if self._idle else await self._connect()",
        f"{REDIS}/test_redis_node.py::test_concurrent_exchanges_use_separate_connections",
    ),
    # --------------------------------------------------------------------------------------------------- DynamoDB
    Mutant(
        "DynamoDB's settles and renewals have no token in their condition",
        DYNAMO_SETTLING,
        'return {"token": lease.token, "state": int(KeyState.LEASED)}',
        'return {"state": int(KeyState.LEASED)}',
        f"{DYNAMO_LAWS}::test_a_stale_owner_can_change_nothing",
    ),
    Mutant(
        "DynamoDB's takeover is written over another's",
        DYNAMO_CLAIMING,
        "expected = None if old is None else items.version(old)\n            refused",
        'expected = None if old is None else {"state": old["state"]}\n            refused',
        f"{DYNAMO_LAWS}::test_one_racer_takes_over_an_expired_lease",
    ),
    Mutant(
        "DynamoDB refuses a claim by its own lost answer",
        DYNAMO_CLAIMING,
        'if old is not None and old.get("nonce") == nonce:',
        'if old is not None and old.get("nonce") is nonce:',
        f"{DYNAMO}/test_dynamodb_faults.py::test_a_claim_whose_reply_was_lost_finds_its_own_grant",
    ),
    Mutant(
        "DynamoDB's sweeper takes a token that is still needed",
        DYNAMO_ITEMS,
        "max(expires_ms, now_ms + TOKEN_KEPT_MS) // 1000 + 1",
        "expires_ms // 1000 + 1",
        f"{DYNAMO}/test_dynamodb_time.py::test_a_settle_writes_the_time_to_live",
    ),
    Mutant(
        "DynamoDB trusts all clocks",
        DYNAMO_ITEMS,
        '(margin_ms if state is KeyState.LEASED and item["until_ms"] else 0)',
        '(margin_ms if state is KeyState.WAITING and item["until_ms"] else 0)',
        f"{DYNAMO}/test_dynamodb_time.py::test_a_clock_that_is_ahead_by_less_than_the_margin_takes_nothing_over",
    ),
    Mutant(
        "a transaction of DynamoDB is refused by its own lost answer",
        DYNAMO_TRANSACTION,
        'any(item.get("nonce") == self._nonce for item in found.values())',
        'any(item.get("nonce") is self._nonce for item in found.values())',
        f"{DYNAMO}/test_dynamodb_faults.py::test_a_transaction_finds_itself_by_its_nonce",
    ),
    Mutant(
        "DynamoDB gives every attempt the number of the last one",
        DYNAMO_ITEMS,
        "return [[failed.at_ms, failed.reason, failed.attempt] for failed in attempt_log] or None",
        "return [[failed.at_ms, failed.reason] for failed in attempt_log] or None",
        f"{DYNAMO_LAWS}::test_failed_attempts_are_listed_oldest_first",
    ),
    # ------------------------------------------------------------------------------------------------- two stores
    Mutant(
        "a letter elsewhere does not tell of the attempts before",
        LETTERBOX,
        "if dead_letter is None or dead_letter.attempts == 1 or dead_letter.attempt_log:",
        "if dead_letter is None or dead_letter.attempts >= 1 or dead_letter.attempt_log:",
        "tests/stores/dead_letter_store/test_dead_letter_store_laws.py::TestLettersOfMemory"
        "::test_failed_attempts_are_listed_oldest_first",
    ),
    Mutant(
        "an event is given up before its letter is kept",
        LETTERBOX,
        "        kept = await self._keep(settlements)\n"
        "        results = await self._ledger.settle("
        "[replace(settlement, dead_letter=None) for settlement in settlements])\n",
        "        results = await self._ledger.settle("
        "[replace(settlement, dead_letter=None) for settlement in settlements])\n"
        "        kept = await self._keep(settlements)\n",
        f"{LETTERS_ELSEWHERE}::test_nothing_is_given_up_while_the_store_is_unavailable",
    ),
    Mutant(
        "a letter stays though the ledger refused its settle",
        LETTERBOX,
        "if refused := [settlement.lease for settlement in kept if _identity(settlement) not in settled]:",
        "if refused := []:",
        f"{LETTERS_ELSEWHERE}::test_of_two_outcomes_of_one_lease_in_a_batch_the_first_counts",
    ),
    Mutant(
        "a copy is sent away while the first is in its transaction",
        ENGINE,
        'busy = [run for run in runs if run.handler.effect == "transaction" and _is_held_elsewhere(run)]',
        'busy = [run for run in runs if run.handler.effect == "transaction" and run.answer is None]',
        f"{POSTGRES}/test_postgres_engine.py::test_a_copy_waits_for_the_commit_and_is_a_duplicate",
    ),
    Mutant(
        "a ledger that closes abandons the transactions under way",
        f"{LEDGERS}/postgres/ledger.py",
        "            await self._groups.close()\n",
        "            pass\n",
        f"{POSTGRES}/test_postgres_engine.py"
        "::test_a_ledger_that_closes_waits_for_the_commit_of_a_transaction_under_way",
    ),
]
