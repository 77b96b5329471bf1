"""The planted bugs of the inbox, the letters and the catalog."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WRITER = "ledgers/sqlite/writer.py"
OPENING = "ledgers/sqlite/database.py"
QUERIES = "ledgers/sqlite/claims.sql"
INBOX = "ledgers/sqlite/inbox.py"
RULES = "values/inbox_rules.py"
INBOX_QUERIES = "ledgers/sqlite/inbox.sql"
LETTERS = "ledgers/sqlite/dead_letters.py"
LETTER_QUERIES = "ledgers/sqlite/dead_letters.sql"

INBOX_LAWS = "tests/ledgers/test_sqlite_inbox_laws.py::TestSqliteInbox"
SQLITE_INBOX = "tests/ledgers/test_sqlite_inbox.py"

INBOX_MUTANTS = [
    Mutant(
        "a letter is finished without its token",
        INBOX_QUERIES,
        "on i.id = v.column1 and i.token = v.column2",
        "on i.id = v.column1 and i.token >= 0 * v.column2",
        f"{INBOX_LAWS}::test_an_old_token_can_change_nothing",
    ),
    Mutant(
        "a letter is postponed without its token",
        INBOX_QUERIES,
        "where id = v.column1 and token = v.column2 and state = 2",
        "where id = v.column1 and token >= 0 * v.column2 and state = 2",
        f"{INBOX_LAWS}::test_an_old_token_can_change_nothing",
    ),
    Mutant(
        "a letter is given up without its token",
        INBOX_QUERIES,
        "delete from semel_inbox where id = ? and token = ? and state = 2",
        "delete from semel_inbox where id = ? and token >= 0 * ? and state = 2",
        f"{INBOX_LAWS}::test_an_old_token_can_change_nothing",
    ),
    Mutant(
        "what was postponed is finished by whoever postponed it",
        INBOX_QUERIES,
        "    where i.state = 2\n",
        "",
        f"{INBOX_LAWS}::test_an_old_token_can_change_nothing",
    ),
    Mutant(
        "accept does not look into the ledger",
        INBOX,
        "in known_keys(connection, digests).items()",
        "in known_keys(connection, []).items()",
        f"{INBOX_LAWS}::test_an_item_or_a_record_is_there_at_every_moment",
    ),
    Mutant(
        "accept does not look into the inbox",
        INBOX,
        'select_many(connection, SQL["inbox_keys"], digests)',
        'select_many(connection, SQL["inbox_keys"], [])',
        f"{INBOX_LAWS}::test_one_that_waits_already_is_a_duplicate",
    ),
    Mutant(
        "copies in one batch are all accepted",
        INBOX,
        "known.setdefault(digest, []).append(KnownRow(True, key.fingerprint, key.order_position, None))",
        "pass",
        f"{INBOX_LAWS}::test_copies_inside_one_batch_are_decided_in_order",
    ),
    Mutant(
        "one settled claim of several makes a duplicate",
        RULES,
        "if len(refused) == len(claims) else None",
        "if refused else None",
        f"{INBOX_LAWS}::test_one_unsettled_claim_of_several_is_enough",
    ),
    Mutant(
        "a letter that will be stale swallows the newer event",
        RULES,
        "part = [row for row in part if row.order_position == _order_position(claim)]",
        "pass",
        f"{INBOX_LAWS}::test_the_same_key_at_another_place_in_the_order_is_not_swallowed",
    ),
    Mutant(
        "what the inbox gave up is accepted again",
        INBOX,
        "if reason is None or expires_ms > now:",
        "if reason is None:",
        f"{INBOX_LAWS}::test_an_item_that_is_given_up_becomes_a_dead_letter",
    ),
    Mutant(
        "a letter is taken while another has it",
        INBOX_QUERIES,
        "where i.lane = ? and i.due_ms <= ? order by",
        "where i.lane = ? and i.due_ms - 1000000000 <= ? order by",
        f"{INBOX_LAWS}::test_a_taken_item_is_not_taken_twice_during_its_lease",
    ),
    Mutant(
        "takers that vanished are not counted",
        INBOX_QUERIES,
        "expired_leases = expired_leases + (state = 2), state = 2",
        "state = 2",
        f"{INBOX_LAWS}::test_a_lapsed_item_is_due_again_with_a_higher_token_and_a_lapse",
    ),
    Mutant(
        "whoever found nothing never looks again",
        INBOX_QUERIES,
        "on i.lane = lanes.value and i.due_ms <= ?2 limit 1",
        "on i.lane = lanes.value and i.due_ms < 0 * ?2 limit 1",
        f"{INBOX_LAWS}::test_an_item_is_found_when_it_falls_due_after_an_empty_take",
    ),
    Mutant(
        "letters taken in an earlier boot wait for ever",
        OPENING,
        'connection.execute("update semel_inbox set due_ms = 0 where state = 2")',
        "pass",
        f"{SQLITE_INBOX}::test_items_taken_before_a_reboot_are_due",
    ),
    Mutant(
        "a replay is eaten by its own key",
        LETTERS,
        'connection.execute(SQL["delete_done"], (key, record.id))',
        "pass",
        f"{INBOX_LAWS}::test_the_old_record_does_not_answer_the_claim_of_a_replay",
    ),
    Mutant(
        "a replay forgets what is done under an alias",
        QUERIES,
        "delete from semel_done where digest = ? and record_id = ?",
        "delete from semel_done where digest = ? and record_id >= 0 * ?",
        f"{INBOX_LAWS}::test_an_alias_that_has_moved_on_stays",
    ),
    Mutant(
        "a letter is decided about twice",
        LETTER_QUERIES,
        "where r.digest = ?1 and r.outcome <> 1 and r.decided_ms is null",
        "where r.digest = ?1 and r.outcome <> 1",
        f"{INBOX_LAWS}::test_a_replay_counts_once",
    ),
    Mutant(
        "a key that is done is replayed",
        LETTERS,
        'if dead_letter is None or rows(connection, SQL["answered_by_another"], digest, dead_letter.id, now):',
        "if dead_letter is None:",
        f"{INBOX_LAWS}::test_a_key_that_is_done_meanwhile_is_not_replayed_but_its_dead_letter_can_be_discarded",
    ),
    Mutant(
        "people who read keep writers out",
        WRITER,
        'READING = "begin deferred"',
        'READING = "begin immediate"',
        f"{SQLITE_INBOX}::test_queries_do_not_wait_for_a_writer",
    ),
]
