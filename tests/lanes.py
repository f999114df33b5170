"""The three lanes of the suite, as data: which tests run in which lane, and why.

`scripts/test --quick` runs the tests that need no server. `scripts/test` adds the tests of the
normal lane, and continuous integration runs this command. `scripts/test --all` runs every test.
A test that is named by its file or by its node id runs in each lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import pytest


class Lane(IntEnum):
    """A lane contains the tests of the lanes before it."""

    QUICK = 0
    NORMAL = 1
    ALL = 2


# A test that uses one of these fixtures needs a server, a session of Spark or a Docker engine. A
# fixture can also request one of them only for some of its parameters, by `getfixturevalue`. Such a
# parameter has the mark `server`. In each lane, tests/conftest.py fails a test of the quick lane
# that uses a server, so that a missing mark or rule is noticed in each run.
SERVER_FIXTURES = frozenset(
    {
        "chromium",
        "cluster",
        "container_zookeeper",
        "ensemble",
        "hdfs",
        "image",
        "kerberized",
        "lonely",
        "old",
        "pair",
        "sandbox",
        "sandbox_of",
        "secure",
        "secure_broker",
        "secured",
        "spark",
        "trio",
        "world",
        "yarn",
        "zookeeper",
        "zookeeper_of",
        "zookeeper_release",
    }
)


def of_run(config: pytest.Config) -> Lane:
    """Return the lane of this run."""
    return Lane[str(config.getoption("--lane")).upper()]


@dataclass(frozen=True)
class Rule:
    """Puts the tests whose node id begins with `where` into `lane`; the last rule that fits wins.

    `only`: if given, the rule applies only to cases whose parameters contain one of these words.
    `but`: the rule does not apply to cases whose parameters contain one of these words.
    """

    lane: Lane
    where: str
    why: str
    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def fits(self, node_id: str) -> bool:
        """Return whether the rule applies to this test."""
        if not node_id.startswith(self.where):
            return False
        _, bracket, words = node_id.partition("[")
        case = bracket + words
        if any(word in case for word in self.but):
            return False
        return not self.only or any(word in case for word in self.only)


# The mark of a parameter whose tests use a server.
MARK = "server"
# The lane of a test, set when the test is collected.
LANE = pytest.StashKey[Lane]()
# The rules that apply to none of the collected tests.
UNUSED_RULES = pytest.StashKey[list[Rule]]()


def note_lanes(items: Iterable[pytest.Item]) -> list[Rule]:
    """Store the lane of each collected test. Return the rules that apply to no test."""
    used: set[Rule] = set()
    for module, tests in itertools.groupby(items, key=lambda one: one.nodeid.partition("::")[0]):
        rules = [one for one in RULES if module.startswith(one.where.partition("::")[0])]
        for item in tests:
            node_id, fixtures = item.nodeid, {*getattr(item, "fixturenames", ())}
            if item.get_closest_marker(MARK) is not None:
                fixtures.add(MARK)
            item.stash[LANE] = lane_of(node_id, fixtures, rules)
            used.update(one for one in rules if one.fits(node_id))
    return [one for one in RULES if one not in used]


def lane_of(node_id: str, fixtures: Collection[str], rules: Sequence[Rule]) -> Lane:
    """Return the lane of the last rule that applies, else the lane that the fixtures imply.

    `fixtures` contains `server` if the test has the mark of this name.
    """
    needs_server = MARK in fixtures or not SERVER_FIXTURES.isdisjoint(fixtures)
    found = Lane.NORMAL if needs_server else Lane.QUICK
    for rule in rules:
        if rule.fits(node_id):
            found = rule.lane
    return found


def is_later(module: str, lane: Lane) -> bool:
    """Return whether rules put all tests of a module into lanes after this one.

    The last rule for the whole module decides, unless a rule after it moves a test back.
    """
    rules = [one for one in RULES if module.startswith(one.where.partition("::")[0])]
    whole = [n for n, one in enumerate(rules) if "::" not in one.where and not one.only + one.but]
    return bool(whole) and all(one.lane > lane for one in rules[whole[-1] :])


def fault(item: pytest.Item, servers: Collection[str]) -> str | None:
    """Return what is wrong if a test of the quick lane uses servers, else None."""
    if item.stash[LANE] is not Lane.QUICK or not servers:
        return None
    return (
        f"{item.nodeid} is in the quick lane and uses a server ({', '.join(sorted(servers))}): "
        f"mark the parameter with `{MARK}`, or add a rule to tests/lanes.py"
    )


# How long each lane explores new seeds of the simulator, in seconds.
FRESH_SEEDS_S = {Lane.QUICK: 3.0, Lane.NORMAL: 6.0, Lane.ALL: 120.0}

STARTS_SERVERS = "Its tests start servers themselves."
STARTS_PROCESSES = "Its tests start a process each, which takes a second."


def _later(why: str, *where: str) -> tuple[Rule, ...]:
    """Return rules that put single tests into the lane `all`, all for the same reason."""
    return tuple(Rule(Lane.ALL, one, why) for one in where)


def _normal(why: str, *where: str) -> tuple[Rule, ...]:
    """Return rules that move tests without a server out of the quick lane, for the same reason."""
    return tuple(Rule(Lane.NORMAL, one, why) for one in where)


# Tests that need no server, but would make the quick lane longer than a minute.
LONG_TESTS = (
    *_normal(
        "Takes 5 s. In the quick lane, test_a_kill_at_each_step kills runs.",
        "tests/spark/test_history_pipeline.py::test_any_order_of_files_and_kills",
    ),
    Rule(
        Lane.NORMAL,
        "tests/spark/test_history_pipeline.py::test_a_kill_at_each_step",
        "Each case takes a second. The quick lane kills a run at the commit and at the rename.",
        ("[transactions-", "[state-", "[tables-"),
    ),
    *_normal(
        "Reads Kafka's own definitions of messages from a jar, which may have to be downloaded.",
        "tests/testing/test_messages.py::test_every_version_has_kafkas_fields",
    ),
    *_normal(
        "Takes 3 to 6 s: zkconsumer imports numba for old brokers; a new consumer learns of a "
        "rebalance from a heartbeat.",
        "tests/testing/test_cluster.py::test_every_release_serves_both_clients",
        "tests/testing/test_cluster.py::test_groups_of_the_new_consumer",
    ),
    *_normal(
        "Takes 20 s in a new checkout. `scripts/check` runs it alone.",
        "tests/static/test_checks.py::test_nothing_is_found[mypy]",
    ),
    *_normal(
        "Takes up to 20 s in a new checkout, because mypy reads the package.",
        "tests/static/test_frozen.py::test_mypy_reports_an_assignment",
    ),
    *_normal(
        "Takes 2 to 8 s. tests/sim/test_random_search.py and test_found.py run the same simulator "
        "in the quick lane.",
        "tests/sim/test_random_search.py::test_a_seed_is_one_run_in_every_process",
        "tests/sim/test_exhaustive_search.py::test_no_promise_is_broken",
        "tests/sim/test_jvm_member.py::test_mixed_groups",
    ),
    *_normal(
        "The cases take 12 s together. They check the simulator's monitor, whose code changes "
        "rarely.",
        "tests/sim/test_mutants.py",
        "tests/sim/test_handover.py::test_a_mutant_of_the_hand_over_is_caught",
    ),
)


# The fake brokers pass the suites of the real ones. The normal lane runs only some of these cases.
FAKE_BROKERS = (
    Rule(
        Lane.ALL,
        "tests/brokers/",
        "Runs the suite on a fake broker of each release; the normal lane runs two cases.",
        ("[fake-",),
    ),
    *(
        Rule(Lane.NORMAL, f"tests/brokers/{where}", "Takes less than a second.", (release,))
        for where in (
            "test_groups.py::test_the_next_member_starts_at_the_committed_offsets",
            "test_formats.py::test_compressed_sets",
        )
        for release in ("[fake-0.8.2.2", "[fake-3.9.1")
    ),
    Rule(
        Lane.ALL,
        "tests/kafka/",
        "Runs the suite on a fake broker; the normal lane runs some cases.",
        ("[fake",),
    ),
    *(
        Rule(Lane.NORMAL, f"tests/kafka/{where}", "Takes less than a second.", ("[fake",))
        for where in (
            "test_fetcher.py::test_resolves_both_ends_of_many_partitions",
            "test_logs.py::test_by_time",
            "test_offset_storage.py::test_stored_offsets_are_returned",
        )
    ),
)


SINGLE_TESTS = (
    *_later(
        "Takes 4 s, because it cuts a log at each byte, or flips each bit. Other tests of the file "
        "cut and damage a log at chosen places.",
        "tests/history/test_logs.py::test_cut_at_every_byte",
        "tests/history/test_logs.py::test_each_flipped_bit_is_found",
    ),
    *_later(
        "Takes 5 s: 150 patterns, each up to its time limit. test_limits_are_named checks the "
        "limits one by one.",
        "tests/protocol/test_java_regex.py::test_hostile_patterns_cost_little",
    ),
    *_later(
        "Takes 5 s. The normal lane runs the same simulator with fresh seeds for 6 s.",
        "tests/sim/test_random_search.py::test_no_invariant_is_broken_by_drawn_decisions",
    ),
    *_later(
        "Hundreds of runs take minutes, and the mutants check a monitor whose code changes rarely. "
        "The quick lane runs two seeds of each weather.",
        "tests/sim/test_bridged.py::test_many_random_runs_keep_the_promises",
        "tests/sim/test_bridged.py::test_a_planted_fault_breaks_its_promise",
    ),
    *_later(
        "A case takes 15 s on the fake servers, and longer on real ones. tests/sim/test_bridged.py "
        "moves simulated groups in both directions, and test_wire.py checks the requests.",
        "tests/bridge/test_hand_over.py::test_partitions_move_to_new_consumers_and_back",
    ),
    *_later(
        "Each test takes 20 to 100 s, because sessions expire and several JVM members start. "
        "tests/sim/test_bridged.py moves simulated groups, with every fault.",
        "tests/bridge/test_real_members.py",
    ),
    *_later(
        "The cases take 3 s each. The normal lane explores groups without faults to the end.",
        "tests/sim/test_coordinated_search.py::test_no_promise_is_broken",
        "tests/sim/test_coordinated_search.py::test_a_mutant_is_found[commits of any",
    ),
    *_later(
        "The cooperative protocol and KIP-848 have more states, and are explored.",
        "tests/sim/test_coordinated_search.py::test_a_join_without_faults_is_explored_to_the_end"
        "[classic-eager]",
        "tests/sim/test_coordinated_search.py::test_a_join_without_faults_is_explored_to_the_end"
        "[classic-sticky]",
    ),
    *_later(
        "The case with two faults also explores schedules with one.",
        "tests/sim/test_exhaustive_search.py::test_no_promise_is_broken[1-2500]",
    ),
    *_later(
        "Takes 12 s of CPU time, because it starts an ensemble. In the normal lane tests/sandbox "
        "kills the leader of an ensemble under a client, tests/sim/test_replicas_like_real.py "
        "restarts its servers, and the simulator cuts a server from its leader.",
        "tests/integration/test_restarts.py::test_the_leader_of_an_ensemble_is_killed",
        "tests/faults/test_ensembles.py::test_a_follower_is_cut_from_its_leader",
    ),
    *_later(
        "Takes 5 s of CPU time. In the normal lane tests/integration kills a broker of the "
        "newest release, and the file's other tests run on this release.",
        "tests/brokers/test_groups.py::test_the_broker_restarts[0.8.2.2]",
    ),
    *_later(
        "Takes 5 s of CPU time. The file's other tests replace sessions that the broker refuses.",
        "tests/brokers/test_fetch_sessions.py::test_a_restarted_broker_gets_another_session",
    ),
    *_later(
        "Takes 18 s. In the normal lane tests/brokers has members on the oldest broker, and other "
        "tests of the file have members on the oldest ZooKeeper.",
        "tests/zkreleases/test_groups.py::test_the_oldest_servers",
    ),
    *_later(
        "Takes 24 s of CPU time, because numba compiles the decoder. In the normal lane, "
        "tests/history runs the same decoder.",
        "tests/cli/test_history.py::test_compiling_is_announced",
    ),
    *_later(
        "Each case takes 7 s or more, because it starts several exports. The normal lane runs "
        "test_killed[before the commit] and test_everything_once[parquet].",
        "tests/cli/test_export.py::test_the_reader_is_compiled_before_the_idle_time",
        "tests/cli/test_export.py::test_everything_once[arrow]",
        "tests/cli/test_export.py::test_everything_once[jsonl]",
        "tests/cli/test_export.py::test_killed[before the file is synced]",
        "tests/cli/test_export.py::test_killed[before the directory is synced]",
        "tests/cli/test_export.py::test_killed[after the commit]",
        "tests/cli/test_export.py::test_killed_while_it_writes",
        "tests/cli/test_export.py::test_a_member_joins",
        "tests/cli/test_export.py::test_a_signal[15-0]",
    ),
    *_later(
        "Takes 20 s, because it runs groups of up to 200 members. The other lessons run in each "
        "run, and tests/sim runs the herd with smaller groups.",
        "tests/docs/test_lessons.py::test_the_commands[04-herd-effect]",
    ),
    *_later(
        "Takes 10 s, because it starts a JVM for 6,100 random requests. The normal lane compares "
        "3,600 captured ones.",
        "tests/golden/test_later.py::test_fresh_cases",
    ),
    *_later(
        "Takes 20 s, because it runs 150 random scripts on Kafka's own group coordinator. The "
        "quick lane replays 760 captured ones.",
        "tests/golden/test_coordinator.py::test_fresh_scripts",
    ),
    *_later(
        "Takes 15 s. The simulator chooses random delays for requests and replies in each run.",
        "tests/faults/test_connections.py::test_a_slow_server",
    ),
    *_later(
        "Takes 10 s or more. tests/faults and tests/integration check the same recovery after a "
        "shorter outage.",
        "tests/faults/test_ensembles.py::test_all_servers_restart",
        "tests/integration/test_restarts.py::test_the_leader_of_an_ensemble_is_frozen",
        "tests/spark/test_reading.py::test_brokers_that_stop_and_return",
        "tests/consumer/test_stream_brokers.py::test_a_broker_that_restarts_costs_nothing_but_time",
    ),
    *_later(
        "Takes 8 s of CPU time. test_the_broker_is_killed kills the broker.",
        "tests/integration/test_restarts.py::test_the_broker_restarts",
    ),
    *_later(
        "Takes 8 s of CPU time. tests/traces/test_stories.py runs a member without a broker. "
        "tests/consumer/test_stream.py runs a stream that waits for a broker.",
        "tests/integration/test_restarts.py::test_a_member_joins_while_no_broker_is_there",
    ),
    *_later(
        "Takes 11 s of CPU time. A server without space ends, and "
        "tests/integration/test_restarts.py kills the server of a group.",
        "tests/faults/test_tampering.py::test_no_space_is_left",
    ),
    *_later(
        "Takes 5 s of CPU time. tests/sim/test_exhaustive_search.py checks that the time of day "
        "does not matter.",
        "tests/faults/test_tampering.py::test_the_wall_clock_is_set",
    ),
    *_later(
        "Takes 8 s of CPU time. test_a_connection_without_replies in tests/integration lets the "
        "lease run out in the same way.",
        "tests/faults/test_connections.py::test_one_direction_is_lost",
    ),
    *_later(
        "Takes 7 s of CPU time. Other tests of the file poll while a broker is silent.",
        "tests/consumer/test_timeouts.py::"
        "test_a_silent_broker_does_not_delay_the_partitions_of_another",
    ),
    Rule(
        Lane.ALL,
        "tests/sim/test_mutants.py::test_a_mutant_is_caught",
        "These mutants take 4 s of CPU time together. After a change of the code they can take "
        "longer, because a later schedule may be the first that catches them. The normal lane "
        "runs the others: at least one for each promise.",
        (
            "[batch of a former grant]",
            "[blocker's end overlooked]",
            "[broken batch sent again]",
            "[dead client stays dead]",
            "[deaf to members]",
            "[lost reply is a conflict]",
            "[operation outlives its session]",
            "[orders differ]",
            "[owner under another name]",
            "[registrations known by name]",
            "[release before stop]",
            "[stale operations go on]",
            "[trigger lost]",
            "[watch dropped]",
        ),
    ),
    Rule(
        Lane.ALL,
        "tests/cli/test_watching.py::test_a_stream_that_parses",
        "Each case takes 5 s. The normal lane runs each of the three formats with one of the three "
        "commands.",
        but=("[words0-json]", "[words1-yaml]", "[words2-csv]"),
    ),
    *_later(
        "The normal lane reads the older of these two brokers.",
        "tests/consumer/test_stream_brokers.py::test_old_brokers_are_read[0.9.0.1]",
    ),
    *_later(
        "Takes 3 to 5 s of CPU time. bash completes the same words in the normal lane.",
        "tests/cli/test_completion.py::test_fish",
        "tests/cli/test_completion.py::test_tab_completes_names[zsh]",
    ),
    *_later(
        "Takes 4 s of CPU time. tests/cli/test_demo.py::test_a_run lets members leave and checks "
        "that nothing is lost, and a member joins in the normal lane.",
        "tests/integration/test_membership.py::test_a_member_leaves[incremental]",
    ),
    *_later(
        "Takes 6 s of CPU time. Other tests of the file read while a broker is silent.",
        "tests/consumer/test_timeouts.py::test_a_reading_asks_a_silent_leader_once",
    ),
    Rule(
        Lane.ALL,
        "tests/consumer/test_stream_brokers.py::test_old_brokers_resolve_positions",
        "The normal lane asks the older of these two brokers.",
        ("[0.9.0.1-",),
    ),
    *_later(
        "Takes 3 s of CPU time. In the normal lane, other tests kill a member, and freeze one "
        "for longer than its session. tests/faults covers a user that hangs. tests/traces covers a "
        "group with more threads than partitions.",
        "tests/integration/test_membership.py::test_a_member_is_killed_at_work",
        "tests/integration/test_membership.py::test_a_freeze_within_the_session_moves_nothing",
        "tests/integration/test_membership.py::test_a_slow_user",
        "tests/integration/test_membership.py::test_more_threads_than_partitions",
    ),
    *_later(
        "Takes 3 to 5 s of CPU time. In the normal lane, test_expiry ends sessions, another "
        "test kills a member amid a claim, and the simulator cuts a server from its leader.",
        "tests/integration/test_restarts.py::test_zookeeper_is_killed_for_longer_than_a_session",
        "tests/integration/test_connections.py::test_a_kill_amid_a_release",
        "tests/integration/test_connections.py::test_a_server_without_its_leader",
    ),
    *_later(
        "tests/integration/test_restarts.py restarts ZooKeeper under the same kind of member.",
        "tests/spark/test_group_faults.py::test_zookeeper_restarts",
    ),
    *_later(
        "Takes 20 s, because a query waits. tests/spark/test_group.py also tests a query that "
        "plans a batch before it owns its partitions.",
        "tests/spark/test_group_queries.py::test_a_run_without_its_share_fails",
        "tests/spark/test_group_queries.py::test_a_run_without_its_share_may_continue",
    ),
    *_later(
        "Takes 20 s, because it starts a broker with TLS and SASL. tests/security/test_brokers.py "
        "reads through the same settings, and test_options.py checks the options.",
        "tests/spark/test_secured_brokers.py",
    ),
    *_later(
        "Takes a minute, and another one if pip has not built the extra kerberos on this machine "
        "yet. tests/security/test_brokers.py checks the errors of a member without this extra.",
        "tests/security/test_kerberos.py",
    ),
    *_later(
        "Takes 5 to 10 s. In each run, the simulator commits to Kafka, while coordinators move.",
        "tests/integration/test_kafka_offsets.py::test_a_commit_follows_the_coordinator",
    ),
    *_later(
        "Takes 11 s. In tests/consumer/test_rules.py a stream raises the same error.",
        "tests/consumer/test_bad_input.py::test_a_taken_consumer_id_is_an_error_in_time",
    ),
    *_later(
        "The case `incremental` runs in the normal lane.",
        "tests/integration/test_membership.py::test_a_member_joins[eager]",
        "tests/integration/test_membership.py::test_a_member_leaves[eager]",
    ),
    *_later(
        "Takes 10 s. tests/sim/test_kafka_offsets.py commits to Kafka, with faults.",
        "tests/integration/test_kafka_offsets.py::test_a_commit_outlasts_a_restart",
    ),
    *_later(
        "tests/brokers/test_formats.py reads compacted topics with the same fetcher.",
        "tests/brokers/test_spark_reading.py::test_compacted_topics",
    ),
    *_later(
        "The same test runs in the normal lane with another parameter.",
        "tests/spark/test_direct.py::test_a_start_that_is_impossible[options2-SparkSourceError]",
        "tests/consumer/test_timeouts.py::test_a_poll_returns_in_time_while_its_broker_is_silent[0]",
        "tests/integration/test_connections.py::test_a_kill_amid_a_transaction[commit]",
        "tests/consumer/test_stream_pause_seek.py::"
        "test_seeking_and_pausing_under_load_keep_every_partition_in_order[kafka]",
        "tests/sandbox/test_no_process_left.py::test_owner_ended_by_a_signal[SIGINT]",
        "tests/sandbox/test_no_process_left.py::test_owner_ended_by_a_signal[SIGKILL]",
        "tests/sandbox/test_no_process_left.py::test_interrupted_while_starting[zookeeper/server.json]",
        "tests/cli/test_completion.py::test_without_zookeeper_nothing_is_printed[127.0.0.1:1]",
        "tests/cli/test_completion.py::test_without_zookeeper_nothing_is_printed[h:x]",
        "tests/security/test_tools.py::test_changing[digest]",
        "tests/security/test_tools.py::test_changing[sasl]",
        "tests/security/test_tools.py::test_reading[digest]",
        "tests/security/test_tools.py::test_reading[sasl]",
        "tests/security/test_tools.py::test_a_user_without_rights[sasl]",
    ),
    *_later(
        "The same test runs in tests/integration with the same broker release.",
        "tests/brokers/test_groups.py::test_partitions_are_added[3.9.1]",
        "tests/brokers/test_groups.py::test_the_broker_restarts[3.9.1]",
        "tests/brokers/test_groups.py::test_two_members_share_and_hand_over[3.9.1]",
    ),
    *_later(
        "Checks the sandbox, which is a development tool. test_up_down_and_up_again starts and "
        "stops it.",
        "tests/sandbox/test_cli.py::test_half_a_sandbox",
        "tests/sandbox/test_cli.py::test_the_zookeeper_release_is_kept",
        "tests/sandbox/test_servers.py::test_sandbox_leaves_nothing",
        "tests/sandbox/test_topics.py::test_no_zookeeper",
    ),
    *_later(
        "Takes 5 s of CPU time. test_a_run runs the whole demonstration. "
        "tests/spark/test_pipeline.py interrupts a demonstration that starts the same servers.",
        "tests/cli/test_demo.py::test_ctrl_c",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_batch.py::test_filters_change_no_result",
        "Each case takes a second. The normal lane reads with two of the five filters.",
        ("[partition IN", "[partition = 7]", "[topic ="),
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_accessibility.py::test_colour_blind_people_distinguish_members",
        "Each case takes a second. The normal lane emulates the most frequent deficiency.",
        but=("[deuteranopia]",),
    ),
    Rule(
        Lane.ALL,
        "tests/mixed/test_malformed_peers.py::test_a_malformed_registration_stalls_only_the_jvm",
        "Takes 1.5 s. The normal lane runs the newest release of the JVM member.",
        ("[0.8.2.2]",),
    ),
    *_later(
        "Each case takes 1.5 to 3 s. The fresh seeds of each run also draw worlds with listeners "
        "and with offsets in Kafka.",
        "tests/sim/test_listener.py::test_no_invariant_is_broken",
        "tests/sim/test_kafka_offsets.py::test_no_invariant_is_broken_with_offsets_in_kafka",
    ),
    *_later(
        "Takes 6 s of CPU time. mypy checks the same annotations in each run, in strict mode.",
        "tests/typing/test_user_code.py::test_pyright_in_strict_mode",
    ),
    *_later(
        "Takes 4 s of CPU time. test_a_marked_edit_wins_on_restart of tests/spark/test_group.py "
        "and the simulator also edit offsets of a stopped query.",
        "tests/spark/test_group_faults.py::test_an_operator_rewinds_a_stopped_query",
    ),
    *_later(
        "Takes 4 s of CPU time, because it reads 2,400 partitions with Spark. "
        "test_thousands_of_groups reads 3,000 groups in several tasks.",
        "tests/spark/test_tables.py::test_a_large_group_is_read_by_several_tasks",
    ),
    *_later(
        "Takes 3 to 7 s. These tests check that the random worlds are diverse enough, and these "
        "worlds change rarely. `scripts/bench_sim --case reached` checks the same with more "
        "schedules.",
        "tests/sim/test_full_worlds.py::test_users_and_faults_do_everything",
        "tests/sim/test_full_worlds.py::test_no_excluded_pair_is_reached",
        "tests/sim/test_aimed_worlds.py::test_faults_hit_brief_phases",
        "tests/sim/test_aimed_worlds.py::test_sharp_worlds_reach_rare_pairs",
    ),
    *_later(
        "Takes 7 s of CPU time, because it runs the whole demonstration again, on a terminal.",
        "tests/cli/test_demo.py::test_a_terminal",
    ),
    *_later(
        "Takes 4 s of CPU time. test_the_lab_follows_a_group_without_writes follows a group, "
        "and tests/zk/test_observer.py checks the observer after a restart.",
        "tests/lab/test_live.py::test_the_lab_follows_after_a_restart",
    ),
    *_later(
        "Takes 6 s. tests/brokers/test_tools.py::test_moving_by_time also uses old brokers.",
        "tests/cli/test_offsets.py::test_by_time_on_old_brokers",
    ),
    *_later(
        "Starts brokers of each release, which takes half a minute each. "
        "tests/golden/test_offsets.py reads their recorded segments.",
        "tests/history/test_offsets_on_brokers.py",
    ),
    *_later(
        "Takes 40 s, because it starts three servers and kills leaders. The normal lane restores "
        "the moments of one server.",
        "tests/admin/test_restore.py::test_faults_of_an_ensemble",
    ),
    *_later(
        "Takes minutes, because members join and leave 40 times. tests/admin/test_restore.py "
        "restores what other clients have recorded.",
        "tests/mixed/test_restored_members.py::test_what_members_recorded",
    ),
    Rule(
        Lane.ALL,
        "tests/admin/test_restore.py::test_each_moment_is_restored",
        "Takes 4 s. The normal lane restores 8 moments, and this case 40.",
        only=("[40]",),
    ),
    *_later(
        "Takes 17 s, because a topic with transactions is exported. "
        "tests/admin/test_transaction_markers.py and tests/kafka/columns read the same markers.",
        "tests/cli/test_export.py::test_the_position_after_a_marker_is_committed",
    ),
    *_later(
        "Takes 27 s, because it runs each call of a page. tests/admin tests the functions.",
        "tests/docs/test_operators.py::test_the_calls",
    ),
    *_later(
        "Takes 17 s. The normal lane runs the file's other tests on the same server, and "
        "tests/zk/contract sends the requests one by one.",
        "tests/zkreleases/test_groups.py::test_no_request_is_sent_that_the_server_lacks",
    ),
    *_later(
        "Takes 20 s. tests/spark/test_group.py shares partitions between two queries, and "
        "tests/mixed between JVM members and zkconsumer members.",
        "tests/spark/test_group_faults.py::test_beside_jvm_and_python_members",
    ),
    *_later(
        "Takes 10 to 15 s, because it waits for a broker's quota, or for a leader that dies. "
        "tests/integration/test_restarts.py kills a broker in the normal lane.",
        "tests/kafka/test_fetcher.py::test_a_quota_is_obeyed",
        "tests/consumer/test_stream_brokers.py::test_a_leader_that_dies_hands_over_to_the_other",
    ),
    *_later(
        "Takes 14 s. tests/kafka/columns/test_compilation.py tests which loops run meanwhile, and "
        "the quick lane reads with the loops that are not compiled.",
        "tests/brokers/test_idle_topics.py::test_members_do_not_wait_for_the_compiler",
    ),
    *_later(
        "Takes 13 s. The simulator lets members join and leave in each run.",
        "tests/faults/test_users.py::test_many_members_join_and_leave",
    ),
    *_later(
        "Takes 12 s, because several JVM members start. test_jvm_and_zkconsumer_members_in_turn "
        "shares a group's offsets in Kafka, too.",
        "tests/mixed/test_kafka_offsets.py::test_a_group_moves_to_kafka_member_by_member",
    ),
    *_later(
        "Takes 11 s. tests/spark/test_direct.py::test_deleted_messages_are_data_loss deletes "
        "messages, too.",
        "tests/spark/test_batch.py::test_what_is_lost_before_and_after_the_plan",
    ),
    *_later(
        "Takes 11 s. tests/lab/test_live.py follows a group in the normal lane.",
        "tests/lab/test_live_reading.py::test_the_live_lab_keeps_its_clients",
    ),
    *_later(
        "Takes 10 s, because a member freezes. Other tests of the file judge recorded runs.",
        "tests/integration/test_replay.py::test_a_freeze_that_is_not_recorded",
    ),
    *_later(
        "Takes 9 s, because it runs the demonstration again. test_a_run runs all of it, and "
        "tests/sandbox/test_no_process_left.py kills the owner of servers.",
        "tests/cli/test_demo.py::test_sigkill",
    ),
    *_later(
        "Takes 8 s. The normal lane reads a topic with one process of the four that the page has.",
        "tests/docs/test_examples.py::test_processes",
        "tests/docs/test_examples.py::test_multi_threaded_interrupted",
    ),
    *_later(
        "Takes 6 s, because it starts members until memory would have grown.",
        "tests/consumer/test_metrics.py::test_metrics_leak",
    ),
    *_later(
        "Takes 7 s, because an ensemble loses its quorum for longer than a session. The "
        "simulator does this in each run.",
        "tests/sim/test_replicas_like_real.py::"
        "test_a_session_outlives_a_loss_of_quorum_longer_than_its_timeout",
    ),
    *_later(
        "Takes 6 s. The normal lane runs the case [1] of the same test.",
        "tests/sim/test_random_search.py::test_a_seed_is_one_run_in_every_process[2]",
    ),
    Rule(
        Lane.ALL,
        "tests/integration/test_expiry.py::test_expiry",
        "Each case takes 2 to 7 s. The normal lane ends the session in the phases in which a "
        "member owns partitions, or is about to; the simulator ends it in each phase.",
        (
            "[leaving-",
            "[reading-",
            "[recovering-",
            "[registering-",
            "[stopping-",
            "[verifying-",
        ),
    ),
    *(
        Rule(
            Lane.ALL,
            f"tests/brokers/test_formats.py::{test}",
            "Each case takes 3 to 9 s. The normal lane reads each codec in each format, and runs "
            "these tests on the oldest broker.",
            ("[3.9.1",),
        )
        for test in (
            "test_the_release_s_own_producer",
            "test_compacted_topics",
            "test_gzip_in_a_group",
        )
    ),
    *_later(
        "The case [0.8.2.2] runs in the normal lane.",
        "tests/brokers/test_tools.py::test_moving_by_time[3.9.1]",
    ),
    *_later(
        "Takes 20 s, because it checks menus and dialogs with axe-core. "
        "tests/lab/test_page.py::test_every_dialog_and_both_themes opens them in the normal lane.",
        "tests/lab/test_accessibility.py::test_panels_menus_and_dialogs",
    ),
    *_later(
        "Takes 12 s: it claims 1,200 partitions and takes a right away meanwhile. tests/member "
        "tests what a member does with claims that are denied.",
        "tests/zk/test_operations_claims.py::test_claims_that_cannot_be_rolled_back_are_owned",
    ),
    *_later(
        "Takes 3 to 8 s, because numba compiles. The suite's set-up compiles the same loops, and "
        "test_compilation.py tests which loops run meanwhile.",
        "tests/kafka/columns/test_loops.py::test_loops_of_the_cache_are_loaded",
        "tests/kafka/columns/test_loops.py::test_one_process_compiles",
    ),
    *_later(
        "Takes 6 s each. test_a_server_of_an_unknown_authority_is_refused refuses a handshake in "
        "the normal lane, and tests/security/test_tools.py reads with a certificate.",
        "tests/security/test_tls_and_sasl.py::test_a_server_of_another_name_is_refused",
        "tests/security/test_tls_and_sasl.py::test_a_client_without_a_certificate_is_refused",
        "tests/security/test_tools.py::test_changing[certificate]",
        "tests/security/test_tools.py::test_a_user_without_rights[certificate]",
    ),
    *_later(
        "Takes 9 s. tests/traces covers a group with more threads than partitions, and the file's "
        "other tests show what `consume` says.",
        "tests/cli/test_trouble.py::test_more_consumers_than_partitions",
    ),
    *_later(
        "Takes 7 s, because several JVM members start. The case with the oldest release runs in "
        "the normal lane.",
        "tests/mixed/test_kafka_offsets.py::test_jvm_and_zkconsumer_members_in_turn[1.1.1-3.9.1-dual]",
    ),
    *_later(
        "Takes 3 to 7 s, because JVMs start. test_zkconsumer_exports_what_the_jvm_imports moves "
        "offsets between the two tools in the normal lane, and tests/cli/test_legacy.py compares "
        "the figures with recorded ones.",
        "tests/cli/test_legacy_jvm.py::test_the_jvm_exports_what_we_imported",
        "tests/mixed/test_tools.py::test_the_same_figures",
    ),
    *_later(
        "Takes 9 s. tests/integration adds partitions to a topic of the newest broker.",
        "tests/brokers/test_groups.py::test_partitions_are_added[0.8.2.2]",
    ),
    *_later(
        "Takes 7 s. The normal lane runs the other programs of the page, and tests/consumer reads "
        "with asyncio.",
        "tests/docs/test_examples.py::test_asynchronous",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_counterexamples.py::test_a_counterexample_is_found",
        "These searches take 25 s of CPU time together. The normal lane finds the others: promises "
        "of delivery, of commits and of releases, which need few schedules.",
        (
            "[JVM rules]",
            "[lost reply is a conflict]",
            "[no re-read after a reconnect]",
            "[no roll-back]",
            "[orders differ]",
            "[trigger lost]",
            "[unconditional commit]",
        ),
    ),
    *_later(
        "Builds a site and searches in a browser, in up to 30 s a case. "
        "tests/lab/test_counterexamples.py searches without a browser.",
        "tests/lab/test_site.py::test_the_site_finds_a_counterexample",
    ),
    *_later(
        "Takes 3 to 5 s in a browser. tests/lab/test_engine.py performs the same commands without "
        "one.",
        "tests/lab/test_page.py::test_protocols_side_by_side",
        "tests/lab/test_page.py::test_the_page_survives_a_restart",
        "tests/lab/test_page.py::test_a_group_with_a_coordinator",
    ),
    *_later(
        "Each takes 1 to 3 s. In the normal lane, tests/lab/test_bridged.py performs the commands "
        "of an operator, and tests/lab/test_engine.py the tour.",
        "tests/lab/test_bridged.py::test_every_move_of_a_group_with_a_bridge",
        "tests/lab/test_bridged.py::test_a_message_to_each_side_is_delayed_and_dropped",
        "tests/lab/test_bridged.py::test_a_partition_changes_sides[bridge-cooperative]",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_engine.py::test_every_move_of_a_coordinated_group",
        "Each case takes 3 s. The normal lane makes every move of the protocol `consumer`.",
        ("[classic-",),
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_engine.py::test_a_coordinated_group_is_copied",
        "Each case takes 2 s. The normal lane copies a group of the protocol `consumer`.",
        ("[classic-",),
    ),
    Rule(
        Lane.ALL,
        "tests/sim/test_coordinated.py::test_a_copy_continues_as_its_world",
        "Each case takes 2 s. The normal lane copies the worlds of the first seed.",
        ("[1-",),
    ),
    *_later(
        "Takes 5 to 8 s, because Spark runs several queries. Other tests of the files read the "
        "same columns, plan without ZooKeeper's help, and start queries again.",
        "tests/spark/test_direct.py::test_columns_of_the_users_schema_in_a_self_union",
        "tests/spark/test_group.py::test_without_zookeeper_no_batch_is_planned",
        "tests/spark/test_group_queries.py::test_the_only_batch_reads",
        "tests/spark/test_tables.py::test_a_replay_has_the_same_rows",
        "tests/spark/test_legacy.py::test_create_direct_stream",
    ),
    *_later(
        "Takes 4 to 6 s, because the command runs for seconds. Other tests of the files export, "
        "consume and watch in the normal lane.",
        "tests/cli/test_export.py::test_files_roll",
        "tests/cli/test_consume.py::test_a_reader_that_sleeps",
        "tests/cli/test_consume.py::test_an_idle_thread_leaves_the_budget_to_the_others",
    ),
    *_later(
        "Takes 11 s of CPU time, because it starts a broker of this release. The normal lane reads "
        "each codec in the formats of the oldest and the newest broker.",
        "tests/brokers/test_formats.py::test_every_codec_in_every_format[0.10.2.2]",
    ),
)

RULES: tuple[Rule, ...] = (
    # ---- not quick, although no fixture says so -------------------------------------------------
    Rule(Lane.NORMAL, "tests/brokers", STARTS_SERVERS),
    Rule(
        Lane.ALL,
        "tests/brokers/test_without_librdkafka.py",
        "Starts servers of both releases, and Spark. The quick lane tests that the modules of "
        "members and tools are imported without librdkafka.",
    ),
    Rule(
        Lane.ALL,
        "tests/brokers/test_deleted_topics.py",
        "Each release takes 30 s, because a race is tried a hundred times. The quick lane tests "
        "for which brokers the columnar reader is chosen.",
    ),
    Rule(Lane.NORMAL, "tests/containers", "Its tests need a Docker engine."),
    *_later(
        "Builds another image, and starts a broker and ZooKeeper from it: 20 s of CPU time. The "
        "normal lane runs some of the fifty tests on the fakes, and starts the project's own "
        "containers.",
        "tests/containers/test_users_suite.py",
    ),
    Rule(Lane.NORMAL, "tests/faults", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/integration", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/mixed", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/sandbox", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/cli", STARTS_PROCESSES),
    Rule(Lane.NORMAL, "tests/consumer/test_stream_brokers.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/consumer/test_timeouts.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/docs/test_examples.py", STARTS_PROCESSES),
    Rule(
        Lane.ALL,
        "tests/strangers/test_programs.py",
        "Installs programs from npm and PyPI, and starts JVMs, which takes minutes. "
        "tests/strangers/test_writers.py sends the same requests.",
    ),
    Rule(Lane.NORMAL, "tests/judge/test_verdicts.py", STARTS_PROCESSES),
    *_later(
        "The two tests take a minute of CPU time. test_the_solution_passes runs a schedule of each "
        "challenge, and tests/judge/test_verdicts.py a naive member.",
        "tests/judge/test_ladder.py::test_the_solution_passes_many_schedules",
        "tests/judge/test_ladder.py::test_the_naive_member_fails",
    ),
    *_later(
        "Takes 15 s of CPU time. test_the_solution_passes of the same file runs two schedules of "
        "each challenge.",
        "tests/judge/test_classic.py::test_the_solution_passes_many_schedules",
        "tests/judge/test_classic.py::test_the_naive_member_fails",
        "tests/judge/test_classic.py::test_an_eager_member_stops_what_stays",
    ),
    *_later(
        "Starts servers, and members that wait for each other. The other tests of the package run "
        "the same programs in the simulation.",
        "tests/judge/test_real.py",
    ),
    *_later(
        "Go compiles its library, and Node.js and a JVM start. The normal lane runs the same "
        "member in Python.",
        "tests/judge/test_languages.py",
    ),
    Rule(Lane.NORMAL, "tests/typing", STARTS_PROCESSES),
    Rule(
        Lane.ALL,
        "tests/docs/test_site.py",
        "Takes 25 s, because it builds the site with the lab. tests/docs/test_readme.py checks the "
        "links of the pages, and tests/lab/test_site.py the lab.",
    ),
    Rule(
        Lane.ALL,
        "tests/monitoring/test_monitoring.py::test_prometheus_accepts_the_rules",
        "Fetches Debian's package of Prometheus. The other tests of the file parse each query.",
    ),
    Rule(
        Lane.ALL,
        "tests/zk/test_clients.py::test_a_server_that_permits_only_its_admin_server",
        "Starts a server with Jetty, whose jars no other test needs. The other tests of the file "
        "ask servers by `cons`.",
    ),
    Rule(Lane.NORMAL, "tests/packages", STARTS_PROCESSES),
    Rule(
        Lane.ALL,
        "tests/packages/test_extras.py",
        "Installs each extra on each Python, which takes minutes. test_wheel installs the wheel "
        "into one environment that has its dependencies.",
    ),
    Rule(
        Lane.ALL,
        "tests/packages/test_pages.py",
        "Installs the packages of each page from the registry, and runs all its commands, which "
        "takes minutes. test_missing_extras runs `history` without extras, and lets Spark find an "
        "editable installation.",
    ),
    Rule(
        Lane.ALL,
        "tests/docs/test_tour.py::test_the_tour",
        "Takes 27 s, because it runs three dozen commands. The quick lane parses each of them, and "
        "tests/cli runs the commands.",
    ),
    Rule(Lane.NORMAL, "tests/security/test_tls_and_sasl.py", STARTS_SERVERS),
    Rule(
        Lane.ALL,
        "tests/security/test_brokers.py",
        "The broker of this listener takes 5 s. The same tests run on the SCRAM "
        "listener of a newer broker.",
        ("SASL_PLAINTEXT",),
    ),
    Rule(
        Lane.ALL,
        "tests/security/test_two_readers.py",
        "Takes 40 s, because librdkafka waits before it reports some refusals. "
        "tests/security/test_brokers.py tests a revoked certificate and certificates from texts.",
        only=("Fetcher",),
    ),
    Rule(
        Lane.ALL,
        "tests/security/test_two_readers.py::test_a_keystore_makes_librdkafka_read_columns",
        "Starts a broker with TLS. The quick lane tests that the property of a keystore is found.",
    ),
    Rule(Lane.NORMAL, "tests/security/test_tools.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/sim/test_replicas_like_real.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/zk/test_tools_connection.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/zk/test_observer.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/zk/test_lost_data.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/zk/test_failed_transactions.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/cli/test_session_ids.py::test_sessions_of", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/zk/test_attempts.py::test_a_server_with_too_many", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/spark/test_finishing.py::test_a_refused_commit", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/spark/test_tables.py::test_zookeeper_restarts", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/consumer/test_bad_input.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/spark/test_pipeline.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/spark/test_pickling.py", STARTS_PROCESSES),
    Rule(Lane.NORMAL, "tests/kafka/columns/test_loops.py", STARTS_PROCESSES),
    Rule(Lane.NORMAL, "tests/kafka/columns/test_compilation.py", STARTS_PROCESSES),
    Rule(Lane.NORMAL, "tests/spark/test_cluster.py", STARTS_SERVERS),
    Rule(Lane.NORMAL, "tests/zk/contract", "Its tests run on real servers."),
    Rule(Lane.QUICK, "tests/zk/contract", "The simulated server needs no process.", ("simulated",)),
    Rule(
        Lane.ALL,
        "tests/sim/test_zookeeper_like_real.py::test_random_requests_reach_the_simulator",
        "Takes 10 s. tests/zk/contract checks each rule on the fake server.",
    ),
    Rule(
        Lane.ALL,
        "tests/testing/test_jvm_consumer.py",
        "Starts JVMs. tests/mixed runs the same members on real servers, and the file "
        "test_jvm_peer.py runs a model of them on the fake.",
    ),
    Rule(
        Lane.ALL,
        "tests/testing/test_node_client.py",
        "Installs a package of npm. tests/zk/contract sends the same requests with kazoo.",
    ),
    Rule(
        Lane.ALL,
        "tests/testing/test_recipes.py::test_kazoos_own_tests",
        "Takes 60 s for each release. The file's other tests run three of kazoo's recipes.",
    ),
    Rule(
        Lane.ALL,
        "tests/zk/contract",
        "The normal lane runs the fake server with the rules of the default release.",
        ("fake-",),
    ),
    *LONG_TESTS,
    *FAKE_BROKERS,
    Rule(
        Lane.ALL,
        "tests/brokers/test_old_versions.py",
        "Waits for each request that 0.9 does not answer. Clients of these releases run in the "
        "other suites.",
    ),
    Rule(Lane.NORMAL, "tests/docs/test_testing_examples.py", STARTS_PROCESSES),
    Rule(
        Lane.ALL,
        "tests/testing/test_users_suite.py",
        "Fifty tests take 3 s of CPU time. The normal lane runs a few of them.",
    ),
    *_normal(
        "Takes less than a second.",
        "tests/testing/test_users_suite.py::test_every_message_is_delivered_once[2-2]",
        "tests/testing/test_users_suite.py::test_rebalances_are_recorded[1]",
        "tests/testing/test_users_suite.py::test_where_offsets_are_stored",
    ),
    Rule(
        Lane.ALL,
        "tests/testing/test_other_clients.py",
        "Installs kafka-python and kafka-node. The normal lane runs zkconsumer and confluent-kafka "
        "against each fake release.",
    ),
    *_later(
        "Starts pytest and real servers, or pytest again. The normal lane runs the examples on "
        "fake servers.",
        "tests/docs/test_testing_examples.py::test_pytest_on_the_sandbox",
        "tests/docs/test_testing_examples.py::test_the_suite_of_fifty_tests_on_the_sandbox",
        "tests/docs/test_testing_examples.py::test_unittest",
        "tests/packages/test_testing.py",
        "tests/docs/test_testing_examples.py::test_an_unknown_release_is_an_error",
    ),
    # ---- the simulator: what searches long ------------------------------------------------------
    Rule(
        Lane.ALL,
        "tests/sim/test_random_search.py::test_no_invariant_is_broken[",
        "The quick lane runs the first forty seeds, and each run of the normal lane explores fresh "
        "seeds for 6 s.",
        but=("[0]",),
    ),
    Rule(
        Lane.NORMAL,
        "tests/sim/test_handover.py::test_no_interleaving_breaks_a_promise",
        "A dozen searches, each of which takes up to a second.",
    ),
    Rule(
        Lane.ALL,
        "tests/sim/test_handover.py::test_no_interleaving_breaks_a_promise",
        "These are the longest searches: each takes 1.5 s of CPU time or more. Shorter cases "
        "explore their actions separately: a release, a seek, a pause, a new grant, and the end of "
        "the lease.",
        (
            "[pause and release]",
            "[seek and release]",
            "[seek ahead]",
            "[release while polling]",
            "[first grant wakes the user]",
            "[positions]",
            "[hand over before a marker]",
            "[release before a marker]",
            "[hand over and back, iterating]",
            "[hand over and back, polling]",
            "[close]",
            "[the member ends by itself]",
            "[replace a grant]",
            "[release while iterating]",
            "[release of both partitions]",
            "[release behind a shut gate]",
            "[withdraw and grant again]",
        ),
    ),
    Rule(
        Lane.ALL,
        "tests/later/test_real_groups.py",
        "A scenario takes up to 20 s, because sessions expire and JVM members start. The normal "
        "lane runs two scenarios with confluent-kafka, and one of KIP-848's protocol on 3.9.1.",
        but=("_scenario[join]", "[static restart]", "kip_848[leave]"),
    ),
    Rule(
        Lane.ALL,
        "tests/later/test_bench_protocols.py",
        "Takes 50 s: after each case it waits for 8 s without a change. tests/sim/test_compare.py "
        "tests the predictions.",
    ),
    Rule(
        Lane.ALL,
        "tests/sim/test_zookeeper_like_real.py::test_random_requests_are_answered_alike",
        "Takes 27 s. The normal lane compares eight of the examples, and tests/zk/contract "
        "checks each rule on both servers.",
        ("[60]",),
    ),
    Rule(
        Lane.ALL,
        "tests/sim/test_handover.py::test_pruning_visited_states_loses_no_result",
        "Takes 10 s. It checks the interleaving search of sim/handover.py itself, which changes "
        "rarely.",
    ),
    # ---- the lab --------------------------------------------------------------------------------
    Rule(
        Lane.ALL,
        "tests/brokers/test_fake_like_real.py",
        "Starts five servers. The brokers' tests run on fake brokers, too, and "
        "tests/zk/contract on fake ZooKeepers.",
    ),
    Rule(
        Lane.ALL,
        "tests/sandbox/test_servers.py::test_ensemble_survives_its_leader",
        "Starts four servers. tests/sim/test_replicas_like_real.py runs a real ensemble.",
    ),
    Rule(
        Lane.ALL,
        "tests/sandbox/test_servers.py::test_port_taken_while_starting",
        "Starts two servers. test_port_in_use takes the port before the start.",
    ),
    Rule(
        Lane.ALL,
        "tests/zk/test_lost_data.py::test_an_outage_ends_no_session",
        "Starts three servers. integration/test_restarts.py::test_zookeeper_restarts keeps a "
        "member's session over an outage.",
    ),
    Rule(
        Lane.ALL,
        "tests/zk/test_lost_data.py::test_an_edit_in_data_that_were_restored",
        "Starts four servers. The other tests of this file empty a server.",
    ),
    Rule(
        Lane.ALL,
        "tests/sandbox/test_classdata.py",
        "Starts three JVMs. tests/sandbox/test_servers.py starts a server with the classes of the "
        "one before.",
    ),
    Rule(
        Lane.ALL,
        "tests/brokers/test_tools.py::test_get_offset_shell",
        "Starts a JVM for each call of the old tool. test_log_ends_and_times compares the same "
        "offsets with the broker's.",
    ),
    Rule(
        Lane.ALL,
        "tests/mixed/test_kafka_offsets.py",
        "Starts a broker and a JVM member. integration/test_kafka_offsets.py compares the offsets "
        "that both kinds of members store.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_tables.py::test_zookeeper_restarts",
        "Starts two servers. The other tests of this file follow a group whose znodes cannot be "
        "read for a while.",
    ),
    Rule(
        Lane.ALL,
        "tests/zkreleases/test_groups.py",
        "Starts a ZooKeeper 3.4.6 and a broker. tests/mixed runs a whole group on this release, "
        "and tests/zk/contract sends each request to it.",
    ),
    Rule(
        Lane.ALL,
        "tests/faults/test_client_death.py::test_a_credential_that_is_refused_from_now_on",
        "Starts four servers. test_a_login_that_breaks_off ends the client in the same way.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_accessibility.py::test_recorded_runs",
        "Takes 6 s: it starts two labs. The other views, with the same parts, are examined in the "
        "normal lane.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_page.py::test_a_tour",
        "Each tour runs for a second in a browser. tests/lab/test_engine.py checks every step "
        "without one.",
        but=("[split-brain]",),
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_sandbox.py::test_the_real_group_does_what_the_simulated_one_does",
        "Takes 90 s: sessions of real members time out. tests/mixed checks groups that "
        "contain JVM members against the protocol's rules.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_sandbox.py::test_ctrl_c_ends_everything",
        "Takes 15 s: it starts servers and members. tests/sandbox interrupts the same servers.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_site.py::test_the_site_s_modules_are_compiled",
        "Takes 10 s: it fetches Pyodide and compiles with it. scripts/bench_lab measures the site.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_actions.py::test_every_action_on_an_object",
        "Each case runs for seconds in a browser. tests/lab/test_engine.py performs every fault.",
        but=("[member]",),
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_actions.py::test_a_key_prepares_a_situation",
        "The normal lane presses one of the five keys.",
        but=("[Z]",),
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_views.py::test_a_long_live_session_does_not_grow",
        "Writes 24,000 events for a minute or more. tests/lab/test_live.py follows a group.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_views.py::test_every_view_fits[4k]",
        "Chromium draws large pictures slowly. The normal lane draws the views at 1280x720.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_views.py::test_every_view_fits[phone]",
        "Takes 6 s. The normal lane draws the views at 1280x720.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_soak.py::test_a_short_run",
        "Takes 15 s, because it starts ZooKeeper, the lab and Chromium. The other tests of the "
        "file check the verdict, and test_live.py follows a group in the same way.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_identify.py::test_real_members",
        "Takes 9 s, because it starts a JVM and a member. The other tests of the file judge "
        "captured registrations, and test_live.py shows the result on the page.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_site.py::test_the_static_site",
        "Takes 15 s: it fetches Pyodide and starts it. tests/static/test_closure.py checks what "
        "the engine imports.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_site.py::test_actions_wait_for_python",
        "Takes 15 s: it fetches Pyodide and starts it. test_page.py tests the stored picture.",
    ),
    Rule(
        Lane.ALL,
        "tests/lab/test_accessibility.py::test_a_view",
        "axe-core takes 5 s of CPU time for each view. The normal lane checks the panels, menus "
        "and dialogs of one view.",
    ),
    # ---- Spark ----------------------------------------------------------------------------------
    Rule(
        Lane.ALL,
        "tests/spark/test_cluster.py",
        "Takes 85 s, because it starts a cluster with executors. tests/spark/test_pickling.py "
        "checks what is sent to executors.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_pipeline.py::test_a_run",
        "Takes 65 s, because it runs the whole demonstration. Other tests in tests/spark check "
        "its queries, and other tests of this file check how its output is compared with the "
        "topic.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_history_demo.py::test_a_run",
        "Takes 90 s, because it runs the demonstration with a cluster of Spark. Other tests of the "
        "file check its parts, and tests/faults/test_mixture.py compares tables of real "
        "groups.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_history_demo.py::test_ctrl_c",
        "Takes 15 s of CPU time. tests/spark/test_pipeline.py interrupts a demonstration that "
        "starts the same servers.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_group_faults.py::test_queries_join_and_leave",
        "Takes 20 s. test_group.py moves partitions between two queries.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_group_faults.py::test_leaders_move",
        "Takes 20 s. tests/consumer/test_stream_brokers.py moves partition leaders while the same "
        "reader runs.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_group_faults.py::test_a_driver_is_killed_within_its_first_batch",
        "Takes 27 s, because it starts two Spark sessions. The simulator kills queries within a "
        "batch in each run, and test_group_queries.py starts a query again.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_group_faults.py::test_a_source_process_freezes",
        "Takes 8 s. tests/integration/test_membership.py freezes a member.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_group_queries.py::test_a_join_with_itself_is_refused",
        "Takes 14 s. tests/spark/test_group.py checks the same error when two queries read "
        "one DataFrame.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_direct.py::test_a_mirror_holds_no_batch",
        "Takes 14 s. Three other tests of the file check which offsets the mirror writes.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_page.py::test_the_programs",
        "Takes 14 s. test_batch, test_direct and test_group check the features that the programs "
        "of docs/spark.md use.",
    ),
    # ---- JVM members ----------------------------------------------------------------------------
    Rule(
        Lane.ALL,
        "tests/mixed/test_mixed_groups.py",
        "A scenario takes 40 s. The normal lane runs one: round-robin with JVM members of the "
        "oldest release on the oldest ZooKeeper. tests/protocol compares both strategies with what "
        "JVM members of each release computed, and in a test of tests/spark, a JVM member shares "
        "partitions by range.",
        but=("[0.8.2.2-roundrobin-on-zookeeper-3.4.6]",),
    ),
    *_later(
        "These tests need a second group as a reference. Its five JVM "
        "members take 12 s of CPU time. The simulator bounds the redelivered messages in each run.",
        "tests/mixed/test_mixed_groups.py::test_no_more_is_repeated_than_among_jvm_members",
        "tests/mixed/test_mixed_groups.py::test_no_more_offsets_are_lowered_than_among_jvm_members",
        "tests/mixed/test_mixed_groups.py::test_no_jvm_member_fails_because_of_zkconsumer",
    ),
    Rule(
        Lane.ALL,
        "tests/mixed/test_kafka_offsets.py::test_jvm_and_zkconsumer_members_in_turn",
        "The normal lane runs two of the ten cases: the oldest and the newest release, each with "
        "one storage.",
        but=("[0.8.2.2-0.8.2.2-kafka]", "[1.1.1-3.9.1-dual]"),
    ),
    Rule(
        Lane.ALL,
        "tests/mixed/test_kafka_offsets.py::test_a_group_moves_to_kafka_member_by_member",
        "The normal lane runs the oldest of the three releases.",
        but=("0.8.2.2-",),
    ),
    Rule(
        Lane.ALL,
        "tests/mixed/test_idle_jvm_members.py",
        "Takes 11 s, because two JVM members start. tests/sim/test_jvm_member.py plays the same "
        "sequence with models of JVM members.",
    ),
    Rule(
        Lane.ALL,
        "tests/mixed/test_jvm_member.py::test_a_member_newer_than_the_brokers",
        "Takes 20 s, because it starts a broker of 0.8.2.2. It tests only Kafka's own programs.",
    ),
    Rule(
        Lane.ALL,
        "tests/mixed/test_jvm_member.py::test_a_member_of_each_release",
        "Each case takes 2.5 s. The normal lane runs the newest of the five releases here, and "
        "members of the oldest one in tests/mixed/test_mixed_groups.py.",
        but=("[1.1.1]",),
    ),
    Rule(
        Lane.ALL,
        "tests/cli/test_legacy.py::test_recorded",
        "Each case takes 2 s of CPU time. The normal lane runs the oldest of the five releases, "
        "which has all the tools.",
        but=("[0.8.2.2]",),
    ),
    Rule(
        Lane.ALL,
        "tests/integration/test_kafka_offsets.py",
        "The normal lane runs the oldest and the newest of the three releases.",
        ("0.9.0.1",),
    ),
    # ---- brokers --------------------------------------------------------------------------------
    Rule(
        Lane.ALL,
        "tests/brokers",
        "0.10.2.2 is between the oldest and the newest release; only its message format differs.",
        ("0.10.2.2",),
    ),
    Rule(
        Lane.NORMAL,
        "tests/brokers/test_formats.py::test_every_codec_in_every_format",
        "Message format v1 is in use from 0.10.0 to 0.10.2.",
        ("0.10.2.2",),
    ),
    Rule(
        Lane.ALL,
        "tests/brokers/test_idle_topics.py",
        "The normal lane runs on 0.8.2.2.",
        ("3.9.1",),
    ),
    Rule(
        Lane.ALL,
        "tests/brokers/test_idle_topics.py::test_members_do_not_wait_for_the_compiler",
        "The method that asks for messages makes no difference to the compiler.",
        ("poll_arrow",),
    ),
    Rule(
        Lane.ALL,
        "tests/brokers/test_formats.py::test_the_release_s_own_producer",
        "The normal lane runs the other codecs, and test_every_codec_in_every_format reads all "
        "codecs.",
        ("gzip", "lz4"),
    ),
    Rule(
        Lane.ALL,
        "tests/brokers/test_tools.py",
        "Starts a broker for two tests. They run on an older and on a newer broker, and "
        "tests/consumer/test_stream_brokers.py uses 0.9.0.1.",
        ("0.9.0.1",),
    ),
    # ---- ZooKeeper ------------------------------------------------------------------------------
    Rule(
        Lane.ALL,
        "tests/zk/contract/test_sessions.py",
        "Sessions take seconds to expire. The quick and the normal lane run these tests on the "
        "simulated server and on the default release.",
        ("[3.4.6]", "[3.9.6]", "[container]", "[fake]"),
    ),
    Rule(
        Lane.ALL,
        "tests/zk/contract/test_zookeeper_contract.py::test_a_silent_session_expires",
        "Sessions take seconds to expire. The quick and the normal lane run these tests on the "
        "simulated server and on the default release.",
        ("[3.4.6]", "[3.9.6]", "[container]", "[fake]"),
    ),
    Rule(
        Lane.ALL,
        "tests/zkreleases/test_ensembles.py",
        "A rolling upgrade from 3.4.6 to 3.8.4 takes 26 s. In tests/faults, a server "
        "of an ensemble of one release loses its leader.",
    ),
    Rule(
        Lane.ALL,
        "tests/zkreleases/test_groups.py",
        "tests/zk/contract runs on the newest release in each run, and tests/integration on the "
        "default one.",
        ("3.9.6",),
    ),
    *(
        Rule(
            Lane.ALL,
            f"tests/zkreleases/test_groups.py::{name}",
            "The scenario of tests/mixed that runs in the normal lane kills and adds members on "
            "the same release of ZooKeeper.",
        )
        for name in ("test_a_member_is_killed", "test_a_member_joins")
    ),
    # ---- members --------------------------------------------------------------------------------
    Rule(
        Lane.ALL,
        "tests/integration/test_expiry.py::test_expiry[",
        "The simulator ends sessions at random moments in each run. The normal lane runs "
        "`overtaken`, the case in which the member is disconnected for the longest time.",
        ("at_once", "reconnected"),
    ),
    Rule(
        Lane.ALL,
        "tests/integration/test_herd.py",
        "Takes 10 s. tests/faults/test_users.py::test_many_members_join_and_leave does the same "
        "with fewer members.",
    ),
    Rule(
        Lane.ALL,
        "tests/faults/test_mixture.py",
        "Injects random faults for 45 s. tests/faults and tests/integration test each of these "
        "faults separately.",
    ),
    Rule(
        Lane.ALL,
        "tests/faults/test_soak.py",
        "Starts servers and groups of its own. tests/faults injects each of these faults.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_history.py::test_tables",
        "The case of the rebalances runs in the normal lane.",
        but=("rebalances",),
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_history_pipeline.py::test_on_spark",
        "Takes 8 s. The other tests of the file run the same tasks and commits without Spark.",
    ),
    Rule(
        Lane.ALL,
        "tests/kafka/columns/test_loops.py::test_the_compiling_process_fills_the_cache",
        "Takes 15 s of CPU time, because it compiles. The normal lane starts the process, and "
        "loads loops that were compiled before.",
    ),
    Rule(
        Lane.ALL,
        "tests/kafka/columns/test_compilation.py::test_plain_python_parses_until",
        "Takes 15 s of CPU time, because it compiles. In the normal lane, "
        "tests/brokers/test_idle_topics.py reads before the loops are compiled.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_hdfs.py",
        "Starts a NameNode and a DataNode from a jar of 56 MB, and takes minutes. "
        "tests/history/test_inputs.py reads logs through the same library from a filesystem in "
        "memory.",
    ),
    Rule(
        Lane.ALL,
        "tests/spark/test_yarn.py",
        "Starts HDFS and YARN, and submits jobs. tests/spark/test_cluster.py submits a job to a "
        "standalone cluster.",
    ),
    *_later(
        "Each query takes seconds. test_transactions reads the same logs, and tests/history checks "
        "growing and damaged logs.",
        "tests/spark/test_history.py::test_servers_of_an_ensemble",
        "tests/spark/test_history.py::test_damage_is_a_row",
        "tests/spark/test_history.py::test_a_stream_of_a_growing_log",
    ),
    Rule(
        Lane.ALL,
        "tests/history/test_zookeeper_tools.py::test_a_live_server",
        "Each case starts a server and ZooKeeper's tools several times. The other tests of the "
        "file compare with the recorded output of these tools.",
    ),
    Rule(
        Lane.ALL,
        "tests/static/test_checks.py::test_windows_has_every_used_name",
        "The type checker reads all modules a second time, which takes 20 s without a cache. "
        "test_all_modules_can_be_imported_on_windows checks the imports.",
    ),
    *SINGLE_TESTS,
)


def table() -> str:
    """Return the table of the last lane's tests in Markdown, as docs/test-lanes.md shows it."""
    lines = [
        "| Tests (cases) | Why not in each run |",
        "|---|---|",
    ]
    later = [rule for rule in RULES if rule.lane is Lane.ALL]
    for why, rules in itertools.groupby(later, key=lambda rule: rule.why):
        tests = ", ".join(map(_shown, rules))
        lines.append(f"| {tests} | {why} |")
    return "\n".join(lines)


def _shown(rule: Rule) -> str:
    where = f"`{rule.where.removeprefix('tests/').removesuffix('[')}`"
    words = [*rule.only, *(f"not {word}" for word in rule.but)]
    return f"{where} ({', '.join(words)})".replace("[", "").replace("]", "") if words else where
