"""Bugs of the service, planted like the others."""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

PUMP = "core/inbox_flow.py"
MISMATCHED_ITEMS = "core/inbox_flow.py"
GATE = "core/ledger_breaker.py"
INGEST = "service/ingest.py"
CONNECTION = "service/server.py"
ACCEPTING = "core/inbox_flow.py"

PUMPING = "tests/engine/test_pump.py"
OTHER_SETTINGS = "tests/engine/test_other_settings.py"
GATING = "tests/engine/test_ledger_breaker.py"
BOOTS = "tests/outbox/test_sqlite_boots.py"
NOT_NOW = "tests/engine/test_not_now.py"
MOUNTED = "tests/service/test_mounted.py"
ANSWERS = "tests/service/test_answers.py"
LIMITS = "tests/service/test_limits.py"
EDGE = "tests/service/test_edge.py"
CLOUDEVENTS = "tests/service/test_cloudevents_headers.py"
SQLITE_FILES = "tests/ledgers/test_sqlite_files.py"
MESSAGE_IDS = "tests/service/test_message_ids.py"

SERVICE_MUTANTS = [
    Mutant(
        "a letter whose event is to be retried is forgotten",
        PUMP,
        "return Postponed(taken, round((outcome.after or 0.0) * 1000), outcome.reason)",
        "return Finished(taken)",
        f"{PUMPING}::test_a_letter_is_finished_when_its_event_is_and_not_before",
    ),
    Mutant(
        "a letter in hand is forgotten when the pump stops",
        PUMP,
        "ending: InboxEnding = Postponed(taken, 0)",
        "ending: InboxEnding = Finished(taken)",
        f"{PUMPING}::test_what_is_in_hand_when_time_is_up_is_given_back_at_once",
    ),
    Mutant(
        "a letter is forgotten when the ledger is down",
        PUMP,
        "return Postponed(taken, round(LEDGER_DOWN_S * 1000))",
        "return Finished(taken)",
        f"{PUMPING}::test_when_nothing_can_be_decided_the_letter_stays",
    ),
    Mutant(
        "an event that its handler takes no more is dropped in silence",
        PUMP,
        "return await self._mismatched.ending(taken, outcome)",
        "return Finished(taken)",
        f"{OTHER_SETTINGS}::test_an_item_that_cannot_run_here_waits_for_a_process_that_can",
    ),
    Mutant(
        "items that were accepted with other settings are given up at once",
        PUMP,
        "return await self._mismatched.ending(taken, outcome)",
        "return GivenUp(taken, outcome.reason)",
        f"{OTHER_SETTINGS}::test_an_item_that_cannot_run_here_waits_for_a_process_that_can",
    ),
    Mutant(
        "what this version cannot read is given up at once",
        PUMP,
        'case "conflict":\n',
        'case "conflict" | "malformed":\n',
        f"{OTHER_SETTINGS}::test_what_this_version_cannot_read_waits_for_one_that_can",
    ),
    Mutant(
        "a mismatch is counted from the acceptance",
        MISMATCHED_ITEMS,
        "since_ms = await self._since_ms(taken, now_ms)",
        "since_ms = taken.accepted_ms",
        f"{OTHER_SETTINGS}::test_it_is_given_up_a_long_time_after_the_first_mismatch",
    ),
    Mutant(
        "a mismatch is counted from the last time, and its item is never given up",
        MISMATCHED_ITEMS,
        "since_ms = await self._since_ms(taken, now_ms)",
        "since_ms = now_ms",
        f"{OTHER_SETTINGS}::test_it_is_given_up_a_long_time_after_the_first_mismatch",
    ),
    Mutant(
        "items that cannot run here are taken again in a hot loop",
        MISMATCHED_ITEMS,
        "after_s = min(max(age_s / 2, POSTPONE_MIN_S), POSTPONE_MAX_S)",
        "after_s = 0.0",
        f"{OTHER_SETTINGS}::test_it_is_postponed_longer_each_time_up_to_a_limit",
    ),
    Mutant(
        "the log names another answer than an unmatched event got",
        "core/routing.py",
        "answer=self._then",
        'answer="ack"',
        "tests/service/consuming/test_unmatched.py",
    ),
    Mutant(
        "a lane that is not ready is taken from",
        PUMP,
        "if slots > 0 and (throttled is None or throttled.ready_in_s() <= 0):",
        "if slots > 0:",
        f"{PUMPING}::test_a_lane_whose_handler_is_not_ready_is_left_alone",
    ),
    Mutant(
        "only the first handler of an event gets a letter",
        ACCEPTING,
        "handlers, claims = plan.handlers, plan.claims",
        "handlers, claims = plan.handlers[:1], plan.claims[:1]",
        f"{PUMPING}::test_each_handler_of_an_event_has_a_letter_of_its_own",
    ),
    Mutant(
        "a letter runs all handlers of its event, also those that are done",
        "core/routing.py",
        "only = delivery.only",
        'only = ""',
        f"{PUMPING}::test_a_letter_waits_for_no_other_handler_of_its_event",
    ),
    Mutant(
        "a lease that comes too late is kept",
        GATE,
        "too_late(pending.result())",
        "pending.result()",
        f"{GATING}::test_a_lease_that_is_granted_too_late_is_released",
    ),
    Mutant(
        "slow round trips do not open the breaker",
        GATE,
        "if not limits:",
        "if True:",
        f"{GATING}::test_slow_calls_are_awaited_until_several_in_a_row_open_the_breaker",
    ),
    Mutant(
        "a stuck store is waited for",
        GATE,
        "await self._wait(pending, limit_s, self._limits(limit_s) if self.is_closed else 1)",
        "await self._wait(pending, limit_s, 3600)",
        f"{GATING}::test_a_stuck_call_is_abandoned_and_later_calls_are_refused_at_once",
    ),
    Mutant(
        "late answers of a store that stays slow are not measured",
        GATE,
        "            return\n        self._round_trip.add(time.monotonic() - begun)\n",
        "            return\n",
        f"{GATING}::test_a_store_that_stays_slow_is_used_again_after_two_windows",
    ),
    Mutant(
        "a store that is not measured yet is judged by the patience for a near one",
        GATE,
        "LIMIT_MAX_S if usual_s is None else min(USUAL_TIMES * usual_s, LIMIT_MAX_S)",
        "0.0",
        f"{GATING}::test_a_store_that_is_always_far_away_opens_nothing",
    ),
    Mutant(
        "a store that becomes slow is usual at once",
        "core/ledger_breaker.py",
        "self._fastest = min(self._fastest, seconds)",
        "self._fastest = self._fastest_before = seconds",
        f"{GATING}::test_a_round_trip_is_usual_when_every_call_of_two_windows_took_it",
    ),
    Mutant(
        "the limit of a call does not grow with the items under way",
        GATE,
        " + self._items * ITEM_S",
        "",
        f"{GATING}::test_the_limit_grows_with_the_items_that_are_under_way",
    ),
    Mutant(
        "a small call waits behind all large ones",
        "core/batcher.py",
        "if self._large_before:",
        "if False:",
        "tests/engine/test_batcher.py::test_a_small_call_waits_for_one_large_call_at_most",
    ),
    Mutant(
        "large batches of API clients do not take turns",
        "service/api/claims.py",
        "return self._large_turn if len(batch) > LARGE_ITEMS else _AT_ONCE",
        "return _AT_ONCE",
        "tests/service/api/test_claims.py::test_large_batches_go_to_the_store_one_after_the_other",
    ),
    Mutant(
        "a time that somebody gave is compared with the clock of the boot",
        "values/notification_codec.py",
        "// timedelta(milliseconds=1) + ahead_ms",
        "// timedelta(milliseconds=1)",
        f"{BOOTS}::test_a_message_before_its_not_after_by_the_wall_clock_is_sent",
    ),
    Mutant(
        "the age of a message is measured by a clock that was set wrongly",
        "core/relay.py",
        "ahead_ms = max(0, dispatch.ahead_ms)",
        "ahead_ms = 0",
        f"{BOOTS}::test_a_message_before_its_not_after_by_the_wall_clock_is_sent",
    ),
    Mutant(
        "not now counts as an attempt",
        "core/runner.py",
        'return RunResult(Release(value.after, _text(value.reason) or "not now"))',
        "return RunResult(Retry(value.after, _text(value.reason)))",
        f"{NOT_NOW}::test_not_now_burns_no_attempt_and_parks_nothing",
    ),
    Mutant(
        "one handler that fails open opens for all",
        "core/routing.py",
        "return all(handler.fail_open for handler in self.handlers)",
        "return any(handler.fail_open for handler in self.handlers)",
        f"{NOT_NOW}::test_without_the_ledger_all_handlers_must_have_chosen_so_and_nothing_is_called_final",
    ),
    Mutant(
        "what is not verified is processed",
        INGEST,
        "if endpoint.verifier is not None and not await endpoint.verifier.verify({**headers, QUERY: query}, body):",
        "if endpoint.verifier is not None and await endpoint.verifier.verify({**headers, QUERY: query}, body) is None:",
        f"{MOUNTED}::test_it_is_mounted_in_starlette_verified_and_inline",
    ),
    Mutant(
        "a body without a length has no limit",
        INGEST,
        "if len(body) > body_max:",
        "if len(body) > body_max * 1000:",
        f"{ANSWERS}::test_a_body_over_the_limit_is_413_whether_or_not_its_length_is_announced",
    ),
    Mutant(
        "a slow sender keeps its connection",
        CONNECTION,
        "self.deadline = self.loop.time() + self.limits.read_timeout_s",
        "self.deadline = NEVER",
        f"{LIMITS}::test_a_sender_that_never_ends_its_headers_is_cut_off",
    ),
    Mutant(
        "who does not read keeps its connection",
        CONNECTION,
        "if now > min(self.deadline, self._write_deadline):",
        "if now > self.deadline:",
        f"{EDGE}::test_a_client_that_does_not_read_responses_is_closed",
    ),
    Mutant(
        "a trailer counts as a header",
        CONNECTION,
        "return  # trailers are ignored",
        "pass",
        f"{EDGE}::test_a_trailer_is_no_header",
    ),
    Mutant(
        "unsigned headers decide what a signed event is",
        "service/endpoints.py",
        "return self.verifier is None or self.verifier.covers_headers",
        "return True",
        f"{EDGE}::test_headers_that_no_signature_covers_do_not_decide_what_an_event_is",
    ),
    Mutant(
        "an answer that nobody asked for is taken for the next one",
        "http_client/client.py",
        " and not protocol.should_close",
        "",
        "tests/service/destinations/test_forward_hostile.py"
        "::test_an_unrequested_response_is_not_used_for_the_next_request",
    ),
    Mutant(
        "the id of a resource is preferred to the signed id of the message",
        "envelopes/webhook.py",
        'own_id = message_id or text(document.get("id"))',
        'own_id = text(document.get("id")) or message_id',
        f"{MESSAGE_IDS}::test_two_updates_of_one_resource_are_two_events",
    ),
    Mutant(
        "the signed id of a message is not kept with its event",
        "values/event.py",
        'return b"" if decode_options == PLAIN else _encode(decode_options)',
        'return b"" if not decode_options.origin and not decode_options.id_path else _encode(decode_options)',
        f"{MESSAGE_IDS}::test_an_accepted_event_keeps_its_message_id_in_the_inbox",
    ),
    Mutant(
        "an unsigned message id beside the signed one is believed",
        "verifiers/standard_webhooks.py",
        'return headers[_family(headers) + b"-id"].decode("ascii")',
        'return headers.get(b"svix-id", headers[_family(headers) + b"-id"]).decode("ascii")',
        f"{MESSAGE_IDS}::test_an_unsigned_id_beside_the_signed_one_is_ignored",
    ),
    Mutant(
        "CloudEvents attributes without a signature are ignored instead of refused",
        INGEST,
        "if unproven and not structured and endpoint.callback_provider is None:",
        "if unproven and endpoint.callback_provider is not None:",
        f"{CLOUDEVENTS}::test_where_only_the_body_is_signed_binary_mode_is_400",
    ),
    Mutant(
        "CloudEvents attributes that are not UTF-8 become equal",
        "values/cloudevents.py",
        'return unquote_to_bytes(plain.encode("latin-1")).decode()',
        'return unquote_to_bytes(plain.encode("latin-1")).decode("utf-8", "replace")',
        "tests/envelopes/test_cloudevents_modes.py::test_http_attributes_that_are_not_utf_8_are_refused",
    ),
    Mutant(
        "a CloudEvent of a broker is read without its attributes",
        "values/cloudevents.py",
        "        if found := _under(prefix, lower):",
        "        if found := _under(prefix, lower if content_type else []):",
        "tests/envelopes/test_cloudevents_modes.py::test_every_binding_in_binary_mode_is_the_structured_event",
    ),
    Mutant(
        "the fingerprint of a CloudEvent without data covers its envelope",
        "envelopes/webhook.py",
        'body_at=("data_base64",) if in_base64 else ("data",),',
        'body_at=("data_base64",) if in_base64 else ("data",) if "data" in document else (),',
        f"{CLOUDEVENTS}::test_a_retry_without_data_and_with_another_trace_is_a_duplicate",
    ),
    Mutant(
        "a commit into a deleted WAL is acknowledged",
        "ledgers/sqlite/writer.py",
        "                self._files.check_all()  # a commit into a deleted file is not acknowledged",
        "                pass",
        f"{SQLITE_FILES}::test_a_commit_into_a_deleted_wal_is_not_acknowledged_and_earlier_commits_are_saved",
    ),
    Mutant(
        "an idle ledger does not notice that its WAL was deleted",
        "ledgers/sqlite/writer.py",
        "                self._check_idle_files()",
        "                pass",
        f"{SQLITE_FILES}::test_an_idle_ledger_saves_the_acknowledged_commits_of_a_deleted_wal",
    ),
    Mutant(
        "a deleted WAL is copied over the writes of another process",
        "ledgers/sqlite/database.py",
        "if any(file_identity(path) not in (None, identity) for path, identity in self._identities):",
        "if False:",
        f"{SQLITE_FILES}::test_a_deleted_wal_is_not_copied_if_another_process_created_a_new_one",
    ),
]
