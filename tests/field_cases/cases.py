"""Field case to the tests that prove it. ``test_cases.py`` checks that each of them exists.

Every case happened to somebody who ran a gateway in front of language models. A test here is generalised to its kind:
where the input can vary, it does. What is proved elsewhere is named and not written twice; ``.../test_x.py`` without a
test's name means all of that file.
"""

from __future__ import annotations

from dataclasses import dataclass

HERE = "tests/field_cases/"


@dataclass(frozen=True)
class Case:
    """One of them."""

    title: str
    tests: tuple[str, ...]
    """``file::function``, ``file::Class::function``, or a whole file."""
    decided: str = ""
    """What we chose where no standard decides; the reasons are in ``docs/decisions.md``."""


CASES: dict[str, Case] = {
    "D01": Case(
        "The forms in which Claude Code names its session",
        (
            HERE + "test_identity_cases.py::test_d01_a_session_is_one_conversation_in_whatever_form_its_id_comes",
            HERE + "test_identity_cases.py::test_d01_an_id_that_is_none_is_passed_on_untouched_and_never_our_error",
            "tests/routing/test_identity.py::test_every_form_of_user_id_names_the_session_of_the_header",
            "tests/routing/test_identity.py::test_the_header_goes_before_the_metadata",
        ),
        "The header goes before the metadata.",
    ),
    "D02": Case(
        "Other clients' sessions, and ids of requests",
        (
            HERE
            + "test_identity_cases.py::"
            + "test_d02_each_clients_way_to_name_a_session_sticks_and_per_request_ids_never_do",
            HERE + "test_identity_cases.py::test_d02_an_id_of_the_request_is_no_id_of_a_conversation",
            "tests/routing/test_identity.py::test_per_request_ids_are_never_read",
        ),
        "Of two lines the first counts.",
    ),
    "D03": Case(
        "No id anywhere",
        (
            HERE + "test_identity_cases.py::test_d03_without_any_id_a_conversation_is_known_by_how_it_began",
            "tests/routing/test_opening.py",
            "tests/gateway/test_gateway.py::test_session_ids_are_counted_by_where_they_came_from",
        ),
    ),
    "D04": Case(
        "Hostile ids, and floods of them",
        (
            HERE + "test_identity_cases.py::test_d04_no_id_breaks_anything_and_none_is_answered_with",
            HERE + "test_identity_cases.py::test_d04_a_flood_of_ids_and_models_leaves_sessions_and_memory_alone",
            "tests/routing/test_conversations.py::test_one_shot_ids_change_nothing_for_conversations_that_return",
            "tests/routing/test_conversations.py::test_a_conversation_with_a_request_in_flight_is_never_evicted",
            "tests/gateway/test_models.py::test_unknown_names_are_not_remembered",
            "tests/security/test_client_port.py::test_random_ids_models_and_paths_make_no_series_and_no_lines",
        ),
    ),
    "D05": Case(
        "One session, several models, several spellings",
        (
            HERE + "test_identity_cases.py::test_d05_a_model_has_its_own_engines_and_its_own_homes_in_each_spelling",
            "tests/gateway/test_exchange.py::test_an_alias_becomes_the_engines_name_and_nothing_else_changes",
            "tests/gateway/test_models.py::test_find",
        ),
        "The request's model becomes the engine's name; the answer is not edited.",
    ),
    "D06": Case(
        "Which replica is least loaded, and that counts come back to 0",
        (
            HERE + "test_routing_cases.py::test_d06_requests_in_flight_count_and_not_those_that_were_answered",
            HERE + "test_routing_cases.py::test_d06_every_request_counts_up_once_and_down_once_however_it_ends",
            "tests/routing/test_router_properties.py",
            "tests/gateway/test_soak.py::test_nothing_is_lost_and_nothing_runs_twice",
        ),
    ),
    "D07": Case(
        "The replica of a conversation goes",
        (
            HERE + "test_routing_cases.py::test_d07_a_session_whose_replica_goes_is_served_and_others_do_not_notice",
            "tests/gateway/test_engine_death.py",
            "tests/routing/test_router.py::TestLostAndReturning::"
            "test_a_lost_home_is_replaced_on_the_next_turn_and_does_not_flap_back",
        ),
        "A silent replica is waited for to the limit, then 504: sending again could generate twice.",
    ),
    "D08": Case(
        "Restart of the gateway; several workers",
        (
            HERE + "test_routing_cases.py::test_d08_after_a_restart_forty_sessions_go_home",
            HERE + "test_cases.py::test_d08_several_workers_are_not_offered",
            "tests/test_serve.py::"
            "test_conversations_go_home_after_a_restart_and_are_placed_anew_if_the_engine_restarted_too",
            "tests/whole/test_warden_killed.py::test_a_killed_warden_comes_back_with_its_engines_and_its_homes",
        ),
        "Homes are kept in a file; there is one process.",
    ),
    "D09": Case(
        "Ready is not alive; probes that fail",
        (
            HERE + "test_routing_cases.py::test_d09_nobody_is_sent_to_a_replica_that_was_never_ready",
            HERE + "test_routing_cases.py::test_d09_a_probe_that_fails_cuts_no_stream",
            "tests/engine/test_client.py::test_no_models",
            "tests/engine/test_watch.py::test_a_start_of_our_own_engine_is_its_supervisors_to_tell",
            "tests/engine/test_watch.py::test_a_silent_engine_whose_answers_flow_stays",
            "tests/engine/test_watch.py::test_one_refused_look_cuts_nothing_and_two_do",
            "tests/engine/test_watch.py::test_when_all_probes_fail_the_engine_is_still_offered",
            "tests/engine/test_health.py",
            "tests/whole/test_probes.py",
        ),
        "All probes failing is doubted; a start has no time limit while its process lives.",
    ),
    "D10": Case(
        "A stream arrives byte for byte, each event at once",
        (
            HERE + "test_stream_cases.py::test_d10_whatever_comes_in_whatever_pieces_arrives_byte_for_byte",
            HERE + "test_stream_cases.py::test_d10_an_event_is_passed_on_when_it_is_complete",
            "tests/gateway/test_exchange.py::test_a_message_stream_is_relayed_byte_for_byte",
        ),
    ),
    "D11": Case(
        "A stream fails in the middle",
        (
            HERE + "test_stream_cases.py::test_d11_a_stream_that_breaks_never_looks_finished_and_is_not_sent_again",
            HERE + "test_stream_cases.py::test_d11_an_error_inside_a_200_is_the_engines_word_and_counts_as_failed",
            HERE + "test_stream_cases.py::test_d11_a_client_that_leaves_frees_its_engine_and_touches_nobody",
            "tests/gateway/test_stream_taps.py::test_an_abort_is_raised_before_the_end_can_be_passed_on",
        ),
        "After bytes were relayed, the connection is cut.",
    ),
    "D12": Case(
        "Long silence",
        (
            HERE + "test_stream_cases.py::test_d12_a_long_silence_is_bridged_between_events_and_asks_the_engine_once",
            "tests/gateway/test_exchange.py::test_pings_come_between_complete_events_only",
            "tests/gateway/test_relay.py::test_a_ping_comes_between_two_events_and_two_chunks_or_not_at_all",
            "tests/gateway/test_waiting_room.py::test_the_wait_is_part_of_the_time_in_which_the_answer_must_begin",
        ),
        "Nothing of ours before the engine's first byte; then a ping every 10 s of silence.",
    ),
    "D13": Case(
        "Usage that the client did not ask for",
        (
            HERE + "test_usage_cases.py::test_d13_usage_is_always_known_and_its_chunk_seen_by_who_asked_for_it",
            "tests/gateway/test_exchange.py::test_usage_is_learned_and_only_an_asked_for_chunk_is_seen",
            "tests/gateway/test_sse_filter.py",
        ),
    ),
    "D14": Case(
        "Cached tokens in all their shapes",
        (
            HERE + "test_usage_cases.py::test_d14_whatever_the_usage_says_it_passes_and_unknown_is_not_zero",
            "tests/gateway/test_usage.py::test_cached_tokens_unknown_is_not_zero",
            "tests/gateway/test_usage.py::test_message_usage_is_merged_and_not_added",
            "tests/gateway/test_usage.py::test_counts_that_no_engine_can_mean_are_unknown",
        ),
    ),
    "D15": Case(
        "One hit ratio for both APIs",
        (
            HERE + "test_usage_cases.py::test_d15_both_apis_give_one_hit_ratio",
            "tests/gateway/test_usage.py::test_both_apis_report_the_same_for_the_same_prompt",
            "tests/console/test_charts.py::test_without_a_prompt_there_is_no_cached_ratio",
        ),
    ),
    "D16": Case(
        "Renamed figures and counters that fall",
        (
            "tests/engine/test_metrics.py::test_old_names_new_names_and_both_give_the_same_figures",
            "tests/engine/test_metrics.py::test_created_lines_are_no_figures_but_can_tell_the_run",
            "tests/engine/test_totals.py",
        ),
    ),
    "D17": Case(
        "Probes, slashes, queries, counting tokens",
        (
            HERE + "test_surface_cases.py::test_d17_slashes_are_forgiven_and_the_query_goes_on_verbatim",
            HERE + "test_surface_cases.py::test_d17_counting_tokens_is_the_engines_answer_and_no_turn",
            HERE + "test_surface_cases.py::test_d17_a_preflight_is_decided_without_a_key_and_lets_no_page_in",
            "tests/gateway/test_gateway.py::test_probes_need_no_key",
            "tests/gateway/test_gateway.py::test_models_are_listed_with_exact_aliases",
        ),
        "A preflight is refused with 403; count_tokens is the engine's answer, also its 404.",
    ),
    "D18": Case(
        "Old and odd HTTP",
        (
            HERE + "test_surface_cases.py::test_d18_a_truncated_answer_to_http_1_0_is_recorded_as_failed",
            "tests/gateway/test_client_side.py::test_expect_100_continue",
            "tests/gateway/test_client_side.py::test_a_body_that_is_too_large_by_its_head_is_refused_before_it_is_sent",
            "tests/gateway/test_client_side.py::test_connection_close_is_honoured",
            "tests/gateway/test_exchange.py::test_http_1_0_gets_no_chunks_and_a_close",
        ),
    ),
    "D19": Case(
        "Framing of requests",
        (
            HERE + "test_surface_cases.py::test_d19_a_large_body_in_chunks_arrives_equal_with_one_framing",
            HERE + "test_surface_cases.py::test_d19_a_body_in_chunks_beyond_the_limit_is_413_and_is_not_kept",
            "tests/gateway/test_client_side.py::test_bodies_of_all_sizes_arrive_equal_with_one_framing",
            "tests/gateway/test_client_side.py::test_ambiguous_framing_is_400_and_closed_and_reaches_nobody",
            "tests/gateway/test_client_side.py::test_the_largest_body_passes_and_one_byte_more_does_not",
            "tests/gateway/test_request_reader.py",
        ),
        "The default limit of a body is 64 MiB.",
    ),
    "D20": Case(
        "Framing and coding of answers",
        (
            "tests/gateway/test_coded_tap.py",
            HERE + "test_usage_cases.py::test_d20_an_answer_without_a_body_has_none",
            HERE + "test_usage_cases.py::test_d20_an_answer_with_two_framings_is_passed_on_with_one_or_not_at_all",
            "tests/gateway/test_exchange.py::test_an_answer_that_is_no_clear_http_is_502",
        ),
        "An answer in a coding that its client did not say it takes goes on decoded.",
    ),
    "D21": Case(
        "Encoded requests",
        (
            HERE + "test_surface_cases.py::test_d21_an_encoded_request_is_read_and_goes_on_decoded",
            HERE + "test_surface_cases.py::test_d21_an_unknown_coding_is_415_in_the_callers_envelope",
            HERE + "test_surface_cases.py::test_d21_a_damaged_body_is_400_and_reaches_nobody",
            "tests/gateway/test_body_decoding.py",
        ),
        "The engine gets the decoded body.",
    ),
    "D22": Case(
        "Keys",
        (
            "tests/gateway/test_gateway.py::test_keys",
            "tests/security/test_client_port.py::test_what_is_no_key",
            "tests/security/test_nothing_leaks.py::test_no_marker_anywhere",
            "tests/access/test_keys.py::test_the_file_is_private_and_holds_no_key",
        ),
        "Two different keys in one request are refused.",
    ),
    "D23": Case(
        "Forged headers",
        (
            HERE + "test_surface_cases.py::test_d23_what_a_client_forges_reaches_no_engine_and_changes_nothing",
            "tests/gateway/test_intake.py::test_client_pins",
            "tests/security/test_client_port.py::test_forged_headers_reach_no_engine_and_move_nothing",
        ),
        "A single valid rank or replica is a pin; anything else is 400.",
    ),
    "D24": Case(
        "Paths that are not ours to serve, and places that are not ours to go",
        (
            HERE + "test_surface_cases.py::test_d24_engine_administration_is_not_to_be_reached",
            HERE + "test_surface_cases.py::test_d24_only_configured_engines_are_connected_to",
            "tests/gateway/test_routes.py",
            "tests/security/test_client_port.py::test_an_engines_administration_is_not_reachable",
        ),
    ),
    "D25": Case(
        "Other sites' pages against the console",
        (
            "tests/console/test_guard.py",
            "tests/console/test_app.py::test_commands_from_elsewhere_do_nothing",
            "tests/security/test_console_port.py",
        ),
    ),
    "D26": Case(
        "Prompts in logs and errors",
        (
            HERE + "test_surface_cases.py::test_d26_what_was_typed_is_in_no_error_of_ours",
            HERE + "test_surface_cases.py::test_d26_an_engines_error_that_repeats_the_prompt_is_the_clients_alone",
            HERE + "test_surface_cases.py::test_d26_an_error_of_100_megabytes_is_relayed_with_bounded_memory",
            "tests/security/test_nothing_leaks.py",
            "tests/test_serve.py::test_no_text_of_a_prompt_is_kept",
        ),
    ),
    "D27": Case(
        "Orphans of an engine",
        (
            "tests/engine/test_supervisor.py::test_stop_ends_the_whole_family",
            "tests/engine/test_supervisor.py::test_what_outlives_its_first_process_is_ended_before_the_next_start",
            "tests/engine/test_supervisor.py::test_a_process_that_follows_no_signal_keeps_others_off_its_gpu",
            "tests/engine/test_supervisor.py::test_another_process_with_a_recorded_number_is_left_alone",
            "tests/engine/test_killed_warden.py",
            "tests/whole/test_warden_killed.py",
        ),
    ),
    "D28": Case(
        "Start, crash, drain",
        (
            "tests/engine/test_supervisor.py::test_a_stranger_on_the_port_is_named_and_not_adopted",
            "tests/engine/test_supervisor.py::test_many_at_once_have_ports_of_their_own",
            "tests/engine/test_supervisor.py::"
            "test_failed_starts_are_given_up_with_the_last_lines_and_a_restart_tries_again",
            "tests/engine/test_backoff.py",
            "tests/test_daemon.py::test_an_open_stream_finishes_after_the_first_signal",
            "tests/test_daemon.py::test_the_second_signal_cuts_streams",
            "tests/gateway/test_gateway.py::test_stop_refuses_new_requests_and_lets_open_ones_end",
        ),
    ),
    "D29": Case(
        "Claude Code's billing line",
        (
            HERE
            + "test_identity_cases.py::"
            + "test_d29_the_billing_line_goes_where_the_switch_says_so_and_never_makes_another_conversation",
            "tests/gateway/test_billing_line.py",
        ),
        "A switch of the model, off: newer vLLMs drop it themselves.",
    ),
    "D30": Case(
        "System turns between the others",
        (
            HERE
            + "test_identity_cases.py::"
            + "test_d30_a_system_turn_in_the_middle_stays_where_it_is_and_its_refusal_is_the_engines",
            "tests/gateway/test_claude_code_shapes.py::test_system_messages_between_the_others_are_left_where_they_are",
        ),
    ),
    "D31": Case(
        "Errors and when to come back",
        (
            HERE + "test_surface_cases.py::test_d31_an_engines_error_has_the_callers_envelope_and_hurts_nobody_else",
            HERE
            + "test_surface_cases.py::"
            + "test_d31_whatever_shape_framing_and_coding_an_error_has_its_words_come_in_the_callers_envelope",
            HERE + "test_surface_cases.py::test_d31_our_own_refusals_come_in_the_callers_envelope",
            HERE + "test_surface_cases.py::test_d31_a_503_is_sent_again_once_and_only_once",
            "tests/gateway/test_engine_errors.py",
            "tests/gateway/test_envelope.py",
            "tests/gateway/test_waiting_room.py::test_a_full_room_is_said_in_the_callers_words",
        ),
        "An engine's error keeps its status and words; its body changes only if its shape is not the caller's.",
    ),
    "D32": Case(
        "Clocks and counts of the load tester",
        (
            HERE + "test_cases.py::test_d32_no_time_of_the_load_tester_comes_from_the_wall_clock",
            "tests/bench/test_stream.py::test_role_reasoning_content_and_usage_chunks_are_told_apart",
            "tests/bench/test_stream.py::test_a_usage_only_chunk_is_no_token",
            "tests/bench/test_client.py::test_the_pool_is_not_capped",
            "tests/bench/test_lag.py::test_lag_is_sampled_and_never_negative",
            "tests/bench/test_measure.py::test_whatever_was_recorded_no_figure_is_negative_or_counted_twice",
        ),
    ),
}
