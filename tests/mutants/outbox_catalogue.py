"""The planted bugs of the outbox's stores."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SQLITE = "ledgers/sqlite"
SQLITE_SQL = f"{SQLITE}/outbox.sql"
POSTGRES = "ledgers/postgres"
RELAY_SQL = f"{POSTGRES}/schema/001_relay.sql"

SQLITE_LAWS = "tests/outbox/test_sqlite_outbox.py::TestSqliteOutbox"
POSTGRES_LAWS = "tests/ledgers/postgres/test_postgres_outbox_laws.py::TestPostgresOutbox"
POSTGRES_GROWN = "tests/ledgers/postgres/test_postgres_outbox_grown.py"

OUTBOX_MUTANTS = [
    # ------------------------------------------------------------------------------------------------------- stalls
    Mutant(
        "a relay that stalled while it connected sends the message",
        "core/relay.py",
        "            if self._clock() >= ends_at:\n",
        "            if False:\n",
        "tests/proof/outbox/test_stopped_relay.py::test_a_relay_that_goes_on_after_its_lease_sends_nothing",
    ),
    Mutant(
        "a relay that stalled while it connected sends the mail",
        "providers/smtp.py",
        "        check_first_byte()\n",
        "",
        "tests/outbox/providers/test_smtp.py::test_a_failed_lease_check_before_the_mail_sends_none_of_it",
    ),
    # ------------------------------------------------------------------------------------------------------ SQLite
    Mutant(
        "a clock that went back gives out the slots of a rate again",
        f"{SQLITE}/outbox.py",
        "next_ms = float(self._now + AHEAD_MS)",
        "next_ms = float(self._now - AHEAD_MS)",
        f"{SQLITE_LAWS}::test_a_clock_that_went_back_gives_out_no_slot_a_second_time",
    ),
    Mutant(
        "a purge forgets the content of what has not been sent",
        SQLITE_SQL,
        "where content is not null and state not in ('pending', 'sending', 'uncertain') and changed",
        "where content is not null and changed",
        f"{SQLITE_LAWS}::test_an_unfinished_notification_stays_however_old_it_is",
    ),
    Mutant(
        "an identity is forgotten with its content",
        f"{SQLITE}/outbox_queries.py",
        'SQL["identities_over"], now - identity_ms, remaining)',
        'SQL["identities_over"], now - content_ms, remaining)',
        f"{SQLITE_LAWS}::test_a_notification_is_purged_after_its_time_with_all_its_records",
    ),
    Mutant(
        "a guard is forgotten as soon as its own window is over",
        f"{SQLITE}/outbox_queries.py",
        'SQL["delete_old_guards"], now - identity_ms, ',
        'SQL["delete_old_guards"], now, ',
        f"{SQLITE_LAWS}::test_a_window_longer_than_that_of_the_sent_notification_is_kept_too",
    ),
    Mutant(
        "who has the name of a forgotten one passes its guard",
        f"{SQLITE}/guards.py",
        "return self.id == dispatch.id and self.passed_ms >= dispatch.added_ms",
        "return self.id == dispatch.id",
        f"{SQLITE_LAWS}::test_a_guard_holds_after_the_notification_that_passed_it_is_purged",
    ),
    Mutant(
        "who has the name of a forgotten one frees its guard",
        f"{SQLITE}/guards.py",
        "is_another = added_ms > passed_ms",
        "is_another = False",
        f"{SQLITE_LAWS}::test_a_notification_with_the_key_of_a_purged_one_does_not_free_its_guard",
    ),
    Mutant(
        "a word about an id that two share moves one of them",
        f"{SQLITE}/outbox.py",
        "return found[0][0] if len(found) == 1 else None",
        "return found[0][0] if found else None",
        f"{SQLITE_LAWS}::test_a_report_about_a_shared_reference_changes_neither_notification",
    ),
    Mutant(
        "the message of another proves that this one was sent",
        f"{SQLITE}/outbox.py",
        "owners[message] = found[0][0] if found else id",
        "owners[message] = id",
        f"{SQLITE_LAWS}::test_a_look_up_that_finds_the_message_of_another_proves_nothing",
    ),
    Mutant(
        "a rate is forgotten from one take to the next",
        f"{SQLITE}/outbox.py",
        "        self._changed.add((lane.provider, tenant))\n",
        "",
        f"{SQLITE_LAWS}::test_lanes_and_relays_that_share_a_provider_share_its_limit",
    ),
    Mutant(
        "of those who wait for the rate the last goes first",
        f"{SQLITE}/outbox.py",
        "yield from sorted(found, key=_longest_due)",
        "yield from sorted(found, key=_longest_due, reverse=True)",
        f"{SQLITE_LAWS}::test_a_notification_waiting_for_the_rate_is_not_overtaken",
    ),
    Mutant(
        "the last of a queue comes forward",
        f"{SQLITE}/schema/007_schema.sql",
        "where order_digest = old.order_digest order by sequence limit 1",
        "where order_digest = old.order_digest order by sequence desc limit 1",
        f"{SQLITE_LAWS}::test_the_next_in_order_is_released_when_the_head_is_finished",
    ),
    Mutant(
        "those behind one are looked at again and again",
        f"{SQLITE}/outbox.py",
        "BLOCKED_MAX = 2_000",
        "BLOCKED_MAX = 1",
        f"{SQLITE_LAWS}::test_a_long_queue_does_not_delay_other_notifications",
    ),
    # -------------------------------------------------------------------------------------------------- PostgreSQL
    Mutant(
        "PostgreSQL forgets the content of what has not been sent",
        RELAY_SQL,
        "              and n.state not in ('pending', 'sending', 'uncertain')\n",
        "",
        f"{POSTGRES_LAWS}::test_an_unfinished_notification_stays_however_old_it_is",
    ),
    Mutant(
        "PostgreSQL lets who has the name of a forgotten one pass its guard",
        RELAY_SQL,
        "(g.id = ids[h.ordinal] and g.passed_ms >= added_times[h.ordinal])",
        "(g.id = ids[h.ordinal] and 0 <= added_times[h.ordinal])",
        f"{POSTGRES_LAWS}::test_a_guard_holds_after_the_notification_that_passed_it_is_purged",
    ),
    Mutant(
        "PostgreSQL believes a look-up that finds the message of another",
        RELAY_SQL,
        "case when w.owner is null then w.ordinal else alternatives[w.ordinal] end",
        "case when true then w.ordinal else alternatives[w.ordinal] end",
        f"{POSTGRES_LAWS}::test_a_look_up_that_finds_the_message_of_another_proves_nothing",
    ),
    Mutant(
        "PostgreSQL moves one of two that share an id",
        RELAY_SQL,
        ") o having count(*) = 1))",
        ") o having count(*) > 0))",
        f"{POSTGRES_LAWS}::test_a_report_about_a_shared_reference_changes_neither_notification",
    ),
    Mutant(
        "PostgreSQL reads a queue from end to end that was empty when it was analyzed",
        RELAY_SQL,
        "where d.id = v.id and d.id = any (found_ids)",
        "where d.id = v.id",
        f"{POSTGRES_GROWN}::test_a_plan_made_for_an_empty_queue_does_not_read_all_of_a_long_one",
    ),
    # -------------------------------------------------------------------------------------- accounts of several tenants
    Mutant(
        "a relay sends through the provider of another tenant",
        "core/relay.py",
        "if reason := provider.contract.refusal(notification.tenant, notification.sender):",
        "if reason := provider.contract.refusal(min(provider.contract.tenants or ['']), notification.sender):",
        "tests/outbox/test_tenant_access.py::test_a_notification_that_names_the_provider_of_another_tenant_is_not_sent",
    ),
    Mutant(
        "a channel falls back to the provider of another tenant",
        "values/delivery_state.py",
        "return [name for name in names if not self._refusal_by(name, notification)]",
        "return list(names)",
        "tests/outbox/test_tenant_access.py::test_each_tenant_is_sent_through_its_own_provider",
    ),
    Mutant(
        "the API adds a notification for the provider of another tenant",
        "service/api/notifications.py",
        "        self._check_access(notification)\n",
        "",
        "tests/service/api/test_notifications.py::test_a_token_cannot_send_through_the_provider_of_another_tenant",
    ),
    # ------------------------------------------------------------------------------------------------- search paths
    Mutant(
        "functions of the ledger use the search path of whoever calls them",
        f"{POSTGRES}/schema/001_outbox.sql",
        "returns table (ordinal integer, status text, state text)\nlanguage plpgsql set enable_seqscan = off "
        "set plan_cache_mode = force_generic_plan set search_path = pg_catalog, pg_temp",
        "returns table (ordinal integer, status text, state text)\nlanguage plpgsql set enable_seqscan = off "
        "set plan_cache_mode = force_generic_plan",
        "tests/ledgers/postgres/test_postgres_search_path.py::test_operators_of_the_caller_do_not_change_what_is_added",
    ),
    Mutant(
        "a handler's tables are created in the ledger's schema",
        f"{POSTGRES}/transaction.py",
        "savepoint {SAVEPOINT}; {path}; {lock}",
        "savepoint {SAVEPOINT}; {lock}",
        "tests/ledgers/postgres/test_postgres_search_path.py::test_tables_of_a_handler_are_not_created_in_the_ledgers_schema",
    ),
    # --------------------------------------------------------------------------------------------------- recipients
    Mutant(
        "a number in another spelling is another customer",
        "values/notification.py",
        "return list(dict.fromkeys((text, e164(text) or email(text) or text)))",
        "return [text]",
        f"{SQLITE_LAWS}::test_another_spelling_of_the_recipient_finds_the_same",
    ),
    # --------------------------------------------------------------------------------------------- refused settings
    Mutant(
        "messages fail for a wrong password",
        "values/delivery_state.py",
        "if answer.configuration and not counted.others:",
        "if False:",
        "tests/outbox/test_provider_pauses.py::test_a_refused_configuration_burns_no_attempt_however_often",
    ),
    Mutant(
        "a provider that refuses its password is asked for every message",
        "core/provider_calls.py",
        "            if pause is None:\n",
        "            if True:\n",
        "tests/outbox/test_provider_pauses.py::test_no_message_fails_and_one_at_a_time_probes",
    ),
    # --------------------------------------------------------------------------------------------------- addresses
    Mutant(
        "a name that was allowed leads to the metadata service",
        "values/addresses.py",
        "return (by_name and not needs_address(address)) or",
        "return by_name or",
        "tests/service/destinations/test_forward_addresses.py"
        "::test_a_name_that_leads_to_the_metadata_service_is_refused_though_it_is_allowed",
    ),
    # --------------------------------------------------------------------------------- one notification and the others
    Mutant(
        "a word about one message rewrites every dispatch",
        f"{POSTGRES}/outbox.sql",
        "from decision w where d.id = $1 and $6 in ('pending', 'uncertain')",
        "from decision w where d.id = $1 or $6 in ('pending', 'uncertain')",
        f"{POSTGRES_LAWS}::test_a_decision_changes_no_other_notification",
    ),
    Mutant(
        "a suppressed message ends every dispatch of its batch",
        RELAY_SQL,
        "where j.verdict = 3 and d.id = ids[j.ordinal] and d.token = tokens[j.ordinal] and d.id = any (ids)",
        "where j.verdict = 3 and d.id = any (ids)",
        f"{POSTGRES_LAWS}::test_a_suppressed_notification_ends_no_other",
    ),
    Mutant(
        "a message that was given up before it left is called unknown",
        SQLITE_SQL,
        "(a.outcome = 'given_up' and a.crossed_ms > 0))))",
        "(a.outcome = 'given_up' or a.crossed_ms > 0))))",
        f"{SQLITE_LAWS}::test_every_way_of_asking_gives_one_answer",
    ),
    Mutant(
        "a message is repeated after its last time",
        "core/resend.py",
        "if not_after is not None and not_after <= datetime",
        "if not_after is not None and not_after < datetime",
        "tests/outbox/test_resent_guards.py::test_what_has_a_last_time_is_repeated_before_it_and_not_after",
    ),
]
