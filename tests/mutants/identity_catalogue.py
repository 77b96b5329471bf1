"""Planted bugs of how events are read: most take two events for one, or one for two."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GENESYS = "envelopes/genesys.py"
EVENTBRIDGE = "envelopes/eventbridge.py"
MEMBERS = "envelopes/members.py"
DECODE = "envelopes/decode.py"

OPTIONS = "settings/adapter_options.py"

IDENTITY = "tests/envelopes/test_envelope_identity.py"
SHAPES = "tests/envelopes/test_envelope_shapes.py"
STATES = "tests/envelopes/test_returning_states.py"
SAMPLES = "tests/envelopes/test_eventbridge_samples.py"
NUMBERS = "tests/envelopes/test_hostile_numbers.py"
SPACES = "tests/service/test_id_spaces.py"

IDENTITY_MUTANTS = [
    Mutant(
        "a state that comes back is a duplicate",
        GENESYS,
        "    if has_event_time(event.body):\n        return content\n",
        "    if event.body:\n        return content\n",
        f"{STATES}::test_a_recurring_state_runs_again_and_its_copies_do_not",
    ),
    Mutant(
        "the date of a resource is taken for the time of the event",
        MEMBERS,
        'EVENT_TIMES = ("eventTime", "eventDate", "timestamp")',
        'EVENT_TIMES = ("eventTime", "eventDate", "timestamp", "dateModified")',
        f"{STATES}::test_only_the_time_of_the_event_itself_makes_content_an_identity",
    ),
    Mutant(
        "the EventBridge id is taken before the time around the body",
        GENESYS,
        'text(detail.get("timestamp")) or correlation_id(detail) or event.delivery_id',
        'event.delivery_id or text(detail.get("timestamp")) or correlation_id(detail)',
        f"{STATES}::test_a_recurring_state_runs_again_and_its_copies_do_not",
    ),
    Mutant(
        "a bare detail without a time is known by its content alone",
        GENESYS,
        "return (*content, occasion) if occasion else ()",
        "return (*content, occasion)",
        f"{STATES}::test_a_bare_detail_without_a_time_has_no_identity",
    ),
    Mutant(
        "an interaction without a time is known by its content alone",
        EVENTBRIDGE,
        "return INTERACTION, (*content, bus_id) if bus_id else ()",
        "return INTERACTION, content",
        f"{STATES}::test_an_interaction_without_a_time_runs_again_when_its_state_recurs",
    ),
    Mutant(
        "an EventBridge event without an id in its detail is refused",
        EVENTBRIDGE,
        "return PLAIN, (bus_id,) if bus_id else ()",
        "return PLAIN, ()",
        f"{SAMPLES}::test_an_event_of_an_aws_service_runs_once_for_each_eventbridge_id",
    ),
    Mutant(
        "the id of a finding is taken for that of its event",
        EVENTBRIDGE,
        "if own_id and source == _GENESYSCLOUD:",
        "if own_id:",
        f"{SAMPLES}::test_a_finding_that_guardduty_repeats_under_its_id_is_another_event",
    ),
    Mutant(
        "a catalogue number of an AWS service is taken for an event id",
        EVENTBRIDGE,
        "if event_id and (not source.startswith(_AWS) or source.startswith(_PARTNERS)):",
        "if event_id:",
        f"{SAMPLES}::test_an_event_of_an_aws_service_runs_once_for_each_eventbridge_id",
    ),
    Mutant(
        "two flow outcomes of one time are one event",
        GENESYS,
        '_SEVERAL_AT_ONCE = (".attributes", ".flow.outcome")',
        '_SEVERAL_AT_ONCE = (".attributes",)',
        f"{IDENTITY}::test_flow_outcomes_without_an_id_are_distinguished_by_their_content",
    ),
    Mutant(
        "the id of a flow outcome is left out of the identity",
        GENESYS,
        "if body.flowOutcomeId is not None or topic.endswith(_SEVERAL_AT_ONCE):",
        "if topic.endswith(_SEVERAL_AT_ONCE):",
        f"{IDENTITY}::test_two_flow_outcomes_of_one_session_at_one_time_are_two_events",
    ),
    Mutant(
        "interim utterances share the identity of their utterance",
        GENESYS,
        'return (topic, *parts, "true") if all(parts) and utterance.get("isFinal") is True else ()',
        'return (topic, *parts, str(utterance.get("isFinal"))) if all(parts) else ()',
        f"{IDENTITY}::test_interim_versions_of_an_utterance_are_events_of_their_own",
    ),
    Mutant(
        "id_path is asked before the recognised shapes",
        DECODE,
        "and not is_generic and (event.identity or event.shape == genesys.CONTROL):",
        "and not is_generic and event.shape == genesys.CONTROL:",
        f"{SHAPES}::test_a_path_to_the_id_leaves_recognised_shapes_as_they_are",
    ),
    Mutant(
        "endpoints with different secrets share one id space",
        OPTIONS,
        "if not verified and endpoint.id_path is None:",
        "if endpoint.id_path is None:",
        f"{SPACES}::test_one_id_of_two_senders_with_secrets_of_their_own_is_two_events",
    ),
    Mutant(
        "the path of an endpoint becomes the origin of events that name theirs",
        OPTIONS,
        "return replace(decode_options or own, default_origin=endpoint.path)",
        "return replace(decode_options or own, origin=endpoint.path)",
        f"{SPACES}::test_an_event_that_names_its_origin_is_one_event_at_both_endpoints",
    ),
    Mutant(
        "a verified endpoint forgets how the app decodes",
        OPTIONS,
        "return replace(decode_options or own, default_origin=endpoint.path)",
        "return replace(decode_options or PLAIN, default_origin=endpoint.path)",
        f"{SPACES}::test_a_verified_endpoint_keeps_how_an_app_in_python_decodes",
    ),
    Mutant(
        "numbers from outside are converted by msgspec, which is slow for some",
        "values/strict_json.py",
        "msgspec.json.Decoder(float_hook=float).decode",
        "msgspec.json.Decoder(Any).decode",
        f"{NUMBERS}::test_slow_numbers_cost_about_as_much_as_ordinary_ones",
    ),
    Mutant(
        "an SNS message is parsed whole before its signature is checked",
        "verifiers/sns.py",
        "fields = skim(body)",
        "fields = read(body)",
        f"{NUMBERS}::test_numbers_of_a_message_that_is_not_verified_are_skipped",
    ),
    Mutant(
        "a genuine SNS message with a name that stands twice is taken",
        "verifiers/sns.py",
        "            read(body)\n",
        "            pass\n",
        "tests/service/verification/test_sns.py::test_a_duplicate_name_is_refused",
    ),
]
