"""The planted bugs. `old` stands exactly once in its file, or the mutant is out of date and its test fails."""

from __future__ import annotations

from tests.mutants.inbox_catalogue import INBOX_MUTANTS
from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

STORE = "ledgers/sqlite/claims.py"
QUERIES = "ledgers/sqlite/claims.sql"
WRITER = "ledgers/sqlite/writer.py"
OPENING = "ledgers/sqlite/database.py"
MEMORY = "ledgers/memory.py"
DECISION = "values/claim_rules.py"
ENGINE = "core/engine.py"
RUNNER = "core/runner.py"
JUDGEMENT = "core/effect_policy.py"
HEARTBEAT = "core/heartbeat.py"
SETTLING = "core/engine.py"
WORKER = "core/worker.py"
HANDLERS = "core/routing.py"
PLANNING = "core/routing.py"

LAWS = "tests/ledgers/test_sqlite_laws.py::TestSqlite"
MEMORY_LAWS = "tests/ledgers/test_memory.py::TestMemory"
FLOW = "tests/engine/test_flow.py"
LEASES = "tests/engine/test_leases.py"
EFFECTS = "tests/engine/test_effects.py"
ISOLATION = "tests/engine/test_isolation.py"
CHECK = "tests/engine/test_check.py"
STOPPED = "tests/proof/test_stopped_process.py"
TRANSACTIONS = "tests/engine/test_transactions.py"
WORKING = "tests/engine/test_worker.py"
NO_KEY = "tests/engine/test_no_key.py"
OTHER_SETTINGS = "tests/engine/test_other_settings.py"

MUTANTS = [
    Mutant(
        "settle without token",
        QUERIES,
        "delete from semel_lease where (digest, token) in (values {rows}) and state = 1",
        "delete from semel_lease where digest in (select column1 from (values {rows})) and state = 1",
        f"{LAWS}::test_a_stale_owner_can_change_nothing",
    ),
    Mutant(
        "retry without token",
        QUERIES,
        "select attempts, attempt_log from semel_lease where digest = ? and token = ? and state = 1\n\n-- name: wait\n"
        "update semel_lease set state = 2, until_ms = ?, reason = ?, attempt_log = ? "
        "where digest = ? and token = ? and state = 1",
        "select attempts, attempt_log from semel_lease where digest = ? and token >= 0 * ? and state = 1\n\n"
        "-- name: wait\nupdate semel_lease set state = 2, until_ms = ?, reason = ?, attempt_log = ? "
        "where digest = ? and token >= 0 * ? and state = 1",
        f"{LAWS}::test_a_stale_owner_can_change_nothing",
    ),
    Mutant(
        "renew without token",
        QUERIES,
        "update semel_lease set until_ms = ? where digest = ? and token = ? and state = 1 and until_ms > 0",
        "update semel_lease set until_ms = ? where digest = ? and token >= 0 * ? and state = 1 and until_ms > 0",
        f"{LAWS}::test_a_stale_owner_can_change_nothing",
    ),
    Mutant(
        "renew without token, in memory",
        MEMORY,
        "if known is None or known.state is not KeyState.LEASED:",
        "if known is None:",
        f"{MEMORY_LAWS}::test_a_final_outcome_stays",
    ),
    Mutant(
        "deferred SQLite transactions, so that a takeover decides from a stale read",
        WRITER,
        'begin: str = "begin immediate",',
        'begin: str = "begin deferred",',
        "tests/ledgers/test_sqlite_lock.py::test_a_claim_has_the_write_lock_before_it_reads",
    ),
    Mutant(
        "a lease lasts one millisecond too short",
        DECISION,
        "live = known.until_ms > now_ms",
        "live = known.until_ms > now_ms + 1",
        f"{LAWS}::test_a_lease_holds_to_its_last_millisecond",
    ),
    Mutant(
        "a lapsed lease is never granted again",
        DECISION,
        "return Busy(known.until_ms - now_ms) if live else None",
        "return Busy(max(known.until_ms - now_ms, 1))",
        f"{LAWS}::test_an_expired_lease_is_granted_again_with_a_higher_token",
    ),
    Mutant(
        "attempts counted on failure only",
        DECISION,
        "attempts=max(one.attempts for one in earlier) + 1 if earlier else 1,",
        "attempts=max(one.attempts + (one.state is KeyState.WAITING) for one in earlier) if earlier else 1,",
        f"{LAWS}::test_a_crash_counts_as_an_attempt",
    ),
    Mutant(
        "the same token again at a takeover",
        DECISION,
        "        token=token,\n",
        "        token=earlier[0].token if earlier else token,\n",
        f"{LAWS}::test_a_stale_owner_can_change_nothing",
    ),
    Mutant(
        "a takeover is not told",
        DECISION,
        "verdict = Granted(lease, fresh.attempts, takeover, now_ms - fresh.first_ms)",
        "verdict = Granted(lease, fresh.attempts, False, now_ms - fresh.first_ms)",
        f"{EFFECTS}::test_park_never_runs_again_and_lists_what_is_in_doubt",
    ),
    Mutant(
        "another payload overwrites the first record",
        DECISION,
        "return Conflict()",
        "return None",
        f"{LAWS}::test_another_payload_is_a_conflict_while_the_lease_lasts_and_after",
    ),
    Mutant(
        "stale guard on equal times",
        DECISION,
        "position < subject.newest",
        "position <= subject.newest",
        f"{LAWS}::test_an_equal_position_is_not_stale",
    ),
    Mutant(
        "two events of one subject at once",
        DECISION,
        "return Busy(holder.until_ms - now_ms) if holder and acting and holder.until_ms > now_ms else None",
        "return None",
        f"{LAWS}::test_two_events_of_one_subject_are_not_granted_at_the_same_time",
    ),
    Mutant(
        "result lost on duplicate",
        "values/outcome_codec.py",
        "return NOTHING if value is None else Done(value)",
        "return NOTHING",
        f"{LAWS}::test_a_settled_key_answers_with_what_it_was_settled_with",
    ),
    Mutant(
        "a key is known under its own name only",
        DECISION,
        "    for alias in claim.aliases:\n        other",
        "    for alias in ():\n        other",
        f"{LAWS}::test_a_key_known_under_an_alias_is_a_duplicate",
    ),
    Mutant(
        "purge of a live lease",
        QUERIES,
        "select digest from semel_lease where state = 2 and until_ms + retention_ms <= ? limit ?",
        "select digest from semel_lease where until_ms - 1000000000 <= ? limit ?",
        f"{LAWS}::test_purge_never_removes_a_live_lease",
    ),
    Mutant(
        "what came of earlier attempts is forgotten with the next",
        DECISION,
        "attempt_log=with_room(next((one.attempt_log for one in earlier if one.attempt_log), b"
        '"")) if earlier else b"",',
        'attempt_log=b"",',
        f"{LAWS}::test_failed_attempts_are_listed_oldest_first",
    ),
    Mutant(
        "what is known no more is replayed by force",
        "ledgers/sqlite/dead_letters.sql",
        "where d.digest = ?1 and r.digest = ?1 and r.outcome = 1 and d.expires_ms > ?2",
        "where d.digest = ?1 and r.digest = ?1 and r.outcome = 1 and ?2 > 0",
        "tests/ledgers/test_sqlite_inbox_laws.py::TestSqliteInbox::test_what_is_known_no_more_cannot_be_replayed",
    ),
    Mutant(
        "purge of letters",
        QUERIES,
        "when outcome = 1 then expires_ms end",
        "else expires_ms end",
        f"{LAWS}::test_dead_letters_are_kept_by_purge_and_visible",
    ),
    Mutant(
        "retention left to the sweeper",
        DECISION,
        "if known.state is KeyState.SETTLED and not live:",
        "if False:",
        f"{LAWS}::test_retention_is_checked_on_read",
    ),
    Mutant(
        "leases of an earlier boot live on",
        OPENING,
        'connection.execute("update semel_lease set until_ms = 0 where state = 1")',
        "pass",
        "tests/ledgers/test_sqlite.py::test_a_lease_of_an_earlier_boot_is_over",
    ),
    Mutant(
        "the writes of a handler commit without its settle",
        RUNNER,
        "                return result  # nothing was settled inside, so the handler's writes are rolled back",
        "                transaction.settled = True  # type: ignore[attr-defined]\n                return result",
        f"{TRANSACTIONS}::test_a_run_that_does_not_succeed_leaves_no_writes",
    ),
    Mutant(
        "the handle outlives its transaction",
        "ledgers/sqlite/transaction.py",
        "        try:\n            self._open = False",
        "        try:\n            self._open = True",
        f"{TRANSACTIONS}::test_the_handle_refuses_a_handler_that_goes_on",
    ),
    Mutant(
        "ack before settle",
        WORKER,
        "            outcomes = await self._engine().process(deliveries)\n",
        "            for delivery in deliveries:\n                await delivery.ack()\n"
        "            outcomes = await self._engine().process(deliveries)\n",
        "tests/proof/test_crash_points.py",
    ),
    Mutant(
        "Busy counted as failure",
        WORKER,
        'case "busy" | "retry":',
        'case "retry":',
        f"{WORKING}::test_everything_goes_back_when_the_ledger_cannot_be_asked",
    ),
    Mutant(
        "key recomputed after the handler",
        RUNNER,
        "        return _result_of(value)",
        "        claim = run.handler.claim_for(run.event)\n"
        "        lease = msgspec.structs.replace(run.granted.lease, claim=claim)\n"
        "        run.granted = msgspec.structs.replace(run.granted, lease=lease)\n"
        "        return _result_of(value)",
        f"{EFFECTS}::test_the_key_is_fixed_before_the_handler_sees_the_event",
    ),
    Mutant(
        "duplicate in one batch run twice",
        DECISION,
        "        known[claim.digest] = grant.known\n",
        "",
        f"{LAWS}::test_duplicates_inside_one_batch_are_decided_in_order",
    ),
    Mutant(
        "duplicate in one batch sent back",
        ENGINE,
        "(first if taken.isdisjoint(digests) else repeats).append(run)",
        "first.append(run)",
        f"{FLOW}::test_copies_in_one_batch_are_decided_one_after_the_other",
    ),
    Mutant(
        "a lost reply repeats the effect",
        SETTLING,
        "        self._next = [*group, *self._next]\n        self._send()\n",
        "        raise LedgerUnavailable('given up')\n",
        f"{LEASES}::test_a_lost_reply_to_a_settle_is_asked_again_and_the_effect_is_not_repeated",
    ),
    Mutant(
        "a settled token is not remembered",
        STORE,
        "return found == [(lease.claim.digest, *encode_outcome(outcome))]",
        "return False",
        f"{LAWS}::test_settling_twice_with_the_same_token_finds_it_settled",
    ),
    Mutant(
        "a handler that lost its lease settles all the same",
        ENGINE,
        "        if ending is not None and not run.lost:\n            settling.add",
        "        if ending is not None:\n            settling.add",
        f"{LEASES}::test_a_handler_is_cancelled_before_its_lease_ends_when_it_cannot_be_renewed",
    ),
    Mutant(
        "nobody renews",
        HEARTBEAT,
        "elif lease_now >= run.renew_at and not run.renewing:",
        "elif False:",
        f"{LEASES}::test_the_lease_is_renewed_while_a_handler_runs",
    ),
    Mutant(
        "park runs again after a crash",
        JUDGEMENT,
        'if handler.effect == "park" and granted.takeover:',
        "if False:",
        f"{EFFECTS}::test_park_never_runs_again_and_lists_what_is_in_doubt",
    ),
    Mutant(
        "park tries again after an exception",
        JUDGEMENT,
        'case Failed(reason=reason) if handler.effect == "park":',
        "case Failed(reason=reason) if False:",
        f"{EFFECTS}::test_park_treats_an_exception_as_in_doubt_and_an_explicit_retry_as_not_done",
    ),
    Mutant(
        "keyed tries again past its window",
        JUDGEMENT,
        "granted.age_ms > KEYED_SHARE * handler.window_s * 1000",
        "granted.age_ms > 100 * handler.window_s * 1000",
        f"{EFFECTS}::test_keyed_tries_again_with_the_same_key_until_four_fifths_of_the_window",
    ),
    Mutant(
        "a poison event never dies",
        JUDGEMENT,
        "if granted.attempt > handler.max_attempts:",
        "if granted.attempt > 1_000_000:",
        f"{EFFECTS}::test_a_crash_counts_as_an_attempt_and_a_poison_event_dies",
    ),
    Mutant(
        "every takeover is isolated: after one kill a handler runs one event at a time",
        JUDGEMENT,
        "granted.attempt >= min(ISOLATED_FROM, handler.max_attempts)",
        "granted.attempt >= 1",
        f"{ISOLATION}::test_events_with_one_vanished_holder_run_beside_each_other",
    ),
    Mutant(
        "events that may kill their process run together",
        JUDGEMENT,
        "granted.attempt >= min(ISOLATED_FROM, handler.max_attempts)",
        "granted.attempt > handler.max_attempts",
        f"{ISOLATION}::test_events_with_two_vanished_holders_run_one_at_a_time_and_the_others_come_again",
    ),
    Mutant(
        "isolation stops every handler",
        "core/handler_run.py",
        "if handler in self._handlers or",
        "if self._handlers or",
        f"{ISOLATION}::test_an_isolated_event_of_one_handler_keeps_no_other_handler_waiting",
    ),
    Mutant(
        "a last attempt is shared with another suspect",
        "core/handler_run.py",
        "or (last_attempt and self._handlers)",
        "",
        f"{ISOLATION}::test_an_event_in_its_last_attempt_shares_its_process_with_no_other_suspect",
    ),
    Mutant(
        "a handler that ignores its cancellation keeps its transaction open",
        "core/handler_run.py",
        "if self.abandon is not None:",
        "if False:",
        f"{TRANSACTIONS}::test_a_handler_that_ignores_its_timeout_gives_the_write_lock_back_at_its_timeout",
    ),
    Mutant(
        "an abandoned transaction can still be written to",
        "ledgers/sqlite/transaction.py",
        "        if not self.settled:\n            self.handle.close()\n",
        "        if not self.settled:\n",
        f"{LAWS}::test_an_abandoned_transaction_keeps_nothing_and_blocks_no_other",
    ),
    Mutant(
        "a settled transaction is abandoned, and reported as committed",
        "ledgers/sqlite/transaction.py",
        "        if not self.settled:\n",
        "        if True:\n",
        f"{LAWS}::test_a_settled_transaction_cannot_be_abandoned",
    ),
    Mutant(
        "a process that stalled after its claim runs the handler",
        RUNNER,
        "            context.check()  # the process may have stalled since its claim\n",
        "",
        f"{STOPPED}::test_who_comes_back_before_its_handler_has_started_does_not_run_it",
    ),
    Mutant(
        "a sync handler begins though its lease ended while it waited for a thread",
        RUNNER,
        "            context.check()  # it may have waited long for its thread\n",
        "",
        f"{CHECK}::test_a_sync_handler_that_waited_for_its_thread_past_its_lease_does_not_run",
    ),
    Mutant(
        "ctx.check() waits for the heartbeat to notice the stall",
        "core/handler_run.py",
        "if run.lost or steady_s() >= run.effects_until:",
        "if run.lost:",
        f"{CHECK}::test_a_run_that_a_check_ends_is_lost_and_no_failed_attempt",
    ),
    Mutant(
        "a run that ctx.check() ended is a failed attempt",
        RUNNER,
        "            if _has_lost_lease(error):\n",
        "            if False:\n",
        f"{CHECK}::test_a_run_that_a_check_ends_is_lost_and_no_failed_attempt",
    ),
    Mutant(
        "a deliverer without time for a second probe brings the event again for ever",
        "core/engine.py",
        "if run.granted.attempt >= run.handler.max_attempts:  # a short time limit",
        "if False:  # a short time limit",
        f"{CHECK}::test_a_deliverer_that_never_has_time_for_the_second_look_leaves_it_to_a_person",
    ),
    Mutant(
        "a probe's Retry() is believed while the holder may be acting",
        ENGINE,
        "if ending is not None or run.lost or wait_s <= 0:",
        "if True:",
        f"{CHECK}::test_a_probe_is_believed_only_when_a_call_that_the_holder_began_has_ended",
    ),
    Mutant(
        "a process that stalled while it connected forwards the event",
        "http_client/client.py",
        "            check_first_byte()\n",
        "",
        "tests/service/destinations/test_forward_app.py"
        "::test_a_forward_of_a_process_that_stalled_past_its_lease_is_not_sent",
    ),
    Mutant(
        "the namespace forgets the tenant",
        HANDLERS,
        "Namespace(tenant, self.name)",
        'Namespace("", self.name)',
        f"{FLOW}::test_tenants_do_not_share_keys",
    ),
    Mutant(
        "a key that cannot be computed refuses the event for every handler",
        PLANNING,
        "planned = [_claim_or_stand_in(handler, event) for handler in handlers]",
        'return Outcome("malformed")',
        f"{NO_KEY}::test_the_other_handlers_run_and_the_event_is_a_dead_letter_of_the_one",
    ),
    Mutant(
        "a handler runs although its key cannot be computed",
        HANDLERS,
        'fn=NoKeyStandIn(f"{NO_KEY}: {error}"),',
        "fn=self.fn,",
        f"{NO_KEY}::test_the_other_handlers_run_and_the_event_is_a_dead_letter_of_the_one",
    ),
    Mutant(
        "another content under the same id is lost where there is no key",
        HANDLERS,
        "return namespace.fallback_digest(known, content_digest(content))",
        'return namespace.fallback_digest(known, content_digest(b""))',
        f"{NO_KEY}::test_another_content_under_the_same_id_is_another_dead_letter",
    ),
    Mutant(
        "events without identity and key are one event where their payloads are equal",
        HANDLERS,
        "content = event.payload() if event.identity else canonical(event.document)",
        "content = event.payload()",
        f"{NO_KEY}::test_events_without_identity_are_told_apart_by_their_whole_document",
    ),
    Mutant(
        "the key of a dead letter may be the key of an event",
        "values/key.py",
        "hashed.update(_length_prefixed((known, content)))",
        "hashed.update(_length_prefixed(known))",
        f"{NO_KEY}::test_no_key_of_a_user_is_the_key_of_such_a_dead_letter",
    ),
    Mutant(
        "crashes replace the reason of an event without key",
        HANDLERS,
        "max_attempts=2**31,",
        "max_attempts=self.max_attempts,",
        f"{NO_KEY}::test_a_crash_between_claim_and_settle_leaves_one_dead_letter_with_its_reason",
    ),
    Mutant(
        "an event without key is dropped while the ledger is out of reach",
        HANDLERS,
        "fail_open=False,",
        "fail_open=self.fail_open,",
        f"{NO_KEY}::test_nothing_runs_without_the_ledger_where_a_dead_letter_must_be_kept",
    ),
    Mutant(
        "a replay forgets that processes with the old settings know its event by the key of its dead letter",
        PLANNING,
        "aliases=(*claim.aliases, Alias(key, handler.retention_ms))",
        "aliases=claim.aliases",
        f"{NO_KEY}::test_a_replay_after_a_change_of_settings_computes_the_key_anew",
    ),
    Mutant(
        "an inbox item runs under another key than it was accepted with",
        PLANNING,
        "claim = replace(claim, digest=key, aliases=(*claim.aliases, *own))",
        "pass",
        f"{OTHER_SETTINGS}::test_an_item_runs_under_the_key_it_was_accepted_with",
    ),
    Mutant(
        "an accepted event is lost as the duplicate of another under a business key",
        PLANNING,
        "own = (Alias(claim.digest, handler.retention_ms),) if handler.identifies else ()",
        "own = (Alias(claim.digest, handler.retention_ms),)",
        f"{OTHER_SETTINGS}::test_an_item_runs_under_the_key_it_was_accepted_with",
    ),
    Mutant(
        "an inbox item is not known by the identity that it has here",
        PLANNING,
        "own = (Alias(claim.digest, handler.retention_ms),) if handler.identifies else ()",
        "own = ()",
        f"{OTHER_SETTINGS}::test_an_identity_that_is_computed_otherwise_here_is_known_with_it",
    ),
    Mutant(
        "an inbox item runs for another tenant",
        PLANNING,
        "if plan.event.tenant != tenant:",
        "if False:",
        f"{OTHER_SETTINGS}::test_an_item_of_another_tenant_is_left_to_others",
    ),
    Mutant(
        "an inbox item is a dead letter where its key cannot be computed",
        PLANNING,
        "if isinstance(handler.fn, NoKeyStandIn):",
        "if False:",
        f"{OTHER_SETTINGS}::test_an_item_whose_key_cannot_be_computed_here_is_left_to_others",
    ),
    Mutant(
        "duplicate names pass",
        "values/strict_json.py",
        "if len(members) != len(pairs):",
        "if False:",
        f"{FLOW}::test_a_malformed_body_is_an_error_alone_and_an_outcome_in_a_batch_and_leaves_nothing",
    ),
    Mutant(
        "the EventBridge id is part of the identity",
        "values/keys.py",
        "return (event.origin, *event.identity)",
        "return (event.origin, event.delivery_id, *event.identity)",
        "tests/envelopes/test_envelope_identity.py",
    ),
    *INBOX_MUTANTS,
]
