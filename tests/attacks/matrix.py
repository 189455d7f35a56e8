"""What a hostile worker may try, row by row: what stops it, and the tests that try it. test_matrix.py holds the table.

A row's layers are alternatives: any of them is enough, so a shape that has one of them is safe from that row. Where our
own processes do it, and no layer of a worker's plan, the row has none.
"""

from dataclasses import dataclass

from protocol.spec import Layer

NO_FOREIGN_FILES = (Layer.LANDLOCK, Layer.MOUNT_NS, Layer.OWN_UID)
NO_FOREIGN_PROCESSES = (Layer.PID_NS, Layer.OWN_UID, Layer.LANDLOCK)  # Landlock for signals: from ABI 6 on


@dataclass(frozen=True)
class Row:
    """tests: file::function, below tests/."""

    attack: str
    layers: tuple[Layer, ...]
    tests: tuple[str, ...]


def rows(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.py::test_{name}" for name in names)


MATRIX = (
    Row(
        "open the token, the journal, another peer's workspace; list the state folder",
        NO_FOREIGN_FILES,
        rows(
            "attacks/test_files",
            "a_secret_or_another_peers_file_cannot_be_read",
            "no_access_level_shows_the_token",
            "folders_of_the_state_cannot_be_listed",
        ),
    ),
    Row(
        "the same by symlink, hard link, rename, /proc/PID/root",
        NO_FOREIGN_FILES,
        rows(
            "attacks/test_files",
            "a_link_in_the_workspace_leads_nowhere",
            "renaming_moves_nothing_out_or_in",
            "the_root_of_another_process_is_no_way_in",
        ),
    ),
    Row(
        "append to a shell profile, to site-packages; plant a module",
        NO_FOREIGN_FILES,
        rows(
            "attacks/test_files",
            "what_others_will_run_later_cannot_be_changed",
            "a_new_file_beside_our_modules_is_refused",
        ),
    ),
    Row(
        "change the mode of a supervisor's file",
        (Layer.SECCOMP, Layer.MOUNT_NS, Layer.OWN_UID),
        rows("attacks/test_files", "the_mode_of_a_foreign_file_stays"),
    ),
    Row(
        "write beyond its access level; execute below `workspace`",
        (Layer.LANDLOCK, Layer.MOUNT_NS),
        rows(
            "attacks/test_files",
            "chat_sees_no_workspace_and_readonly_changes_none",
            "media_are_readable_at_every_level_and_changed_at_none",
            "below_workspace_nothing_but_the_interpreter_is_executed",
        ),
    ),
    Row(
        "connect to the control socket, the bus, an abstract socket",
        (Layer.SECCOMP,),
        (
            *rows(
                "attacks/test_the_bridges_sockets",
                "a_socket_of_the_bridge_accepts_nobody_from_a_worker",
                "the_real_bus_is_not_reached_either",
            ),
            *rows(
                "attacks/test_sockets",
                "no_unix_socket_of_the_bridge_is_reached",
                "a_datagram_pair_is_no_way_to_a_sockets_path",
            ),
        ),
    ),
    Row(
        "TCP, MPTCP, MSG_FASTOPEN, UDP, vsock, netlink",
        (Layer.SECCOMP,),
        rows(
            "attacks/test_sockets",
            "a_worker_without_a_model_opens_no_socket_at_all",
            "open_network_below_full_is_no_network",
            "full_opens_the_internet_but_no_unix_socket",
        ),
    ),
    Row(
        "with a model: any address or port but the gateway's, data before connect, servers, floods of connects",
        (Layer.SECCOMP,),
        rows(
            "attacks/test_ways_to_the_gateway",
            "no_other_address_or_port_is",
            "every_other_kind_of_socket_stays_shut",
            "nothing_gets_out_past_connect",
            "nobody_gets_in",
            "an_address_that_changes_while_it_is_looked_at_leads_nowhere_else",
            "a_flood_of_connects_costs_the_worker_and_not_its_nanny",
        ),
    ),
    Row(
        "kill, tgkill, pidfd_send_signal, F_SETOWN on supervisor, sibling, zygote, nanny; a signal to everybody",
        NO_FOREIGN_PROCESSES,
        rows(
            "attacks/test_processes",
            "no_signal_reaches_a_process_outside",
            "no_descriptor_makes_the_kernel_signal_another",
            "a_signal_to_everybody_reaches_only_our_own",
            "a_signal_to_the_own_group_does_not_reach_the_nanny",
        ),
    ),
    Row(
        "ptrace, process_vm_readv, pidfd_getfd, /proc/PID/environ, mem, fd",
        (Layer.SECCOMP, Layer.LANDLOCK),
        (
            *rows(
                "attacks/test_memory",
                "a_sibling_is_neither_traced_nor_read",
                "either_wall_alone_keeps_a_sibling_closed",
            ),
            *rows("attacks/test_processes", "the_inside_of_another_process_stays_closed"),
        ),
    ),
    Row(
        "prlimit, renice, affinity, oom_score_adj on a sibling",
        (Layer.SECCOMP, *NO_FOREIGN_PROCESSES),
        rows(
            "attacks/test_processes",
            "the_limits_of_a_sibling_stay",
            "the_niceness_of_a_sibling_stays",
            "the_processors_of_a_sibling_stay",
            "a_sibling_is_not_offered_to_the_out_of_memory_killer",
        ),
    ),
    Row(
        "use descriptors and variables that it was left",
        (Layer.DESCRIPTORS, Layer.ENVIRONMENT),
        (
            *rows(
                "attacks/test_ipc",
                "an_agent_starts_with_three_descriptors_of_nothing_and_its_link",
                "the_environment_is_made_new",
            ),
            *rows("worker/test_entry", "it_starts_with_nothing_but_its_link"),
        ),
    ),
    Row(
        "/dev/shm of another, shmget, mq_open, the keyring",
        (Layer.SECCOMP,),
        rows(
            "attacks/test_ipc",
            "the_shared_memory_of_another_is_neither_seen_nor_left_for_others",
            "no_queue_and_no_shared_memory_outside_of_files",
            "no_keyring",
        ),
    ),
    Row(
        "a set-uid program, capabilities",
        (Layer.NO_NEW_PRIVS,),
        (
            *rows("attacks/test_files", "a_set_uid_program_gains_nothing"),
            *rows("attacks/test_memory", "a_worker_holds_no_capability_and_gains_none_by_exec"),
        ),
    ),
    Row(
        "unshare, mount, io_uring, keyctl, userfaultfd, TIOCSTI, calls newer than the list",
        (Layer.SECCOMP,),
        rows(
            "attacks/test_syscalls",
            "no_call_that_steers_the_kernel_is_let_through",
            "a_process_in_a_new_namespace_is_refused",
            "nothing_is_typed_into_a_terminal",
            "calls_newer_than_the_list_are_absent",
        ),
    ),
    Row(
        "fork without end",
        (),  # RLIMIT_NPROC where the tree has a uid or user namespace of its own; else the nanny counts, and kills
        (
            *rows("attacks/test_resources", "a_fork_loop_ends_at_the_limit_and_the_whole_tree_dies_at_once"),
            *rows(
                "attacks/test_real_workers",
                "a_fork_bomb_stays_within_its_count_and_is_gone_at_once_when_told",
                "a_fork_bomb_that_hides_in_sessions_is_ended_by_their_number",
            ),
        ),
    ),
    Row(
        "memory, files and descriptors without end",
        (Layer.RLIMITS,),
        (
            *rows(
                "attacks/test_resources",
                "memory_ends_at_the_limit_of_the_process",
                "one_file_ends_at_the_limit",
                "descriptors_end_at_the_limit",
            ),
            *rows("attacks/test_real_workers", "memory_is_the_whole_trees_and_too_much_of_it_ends_the_tree"),
        ),
    ),
    Row(
        "double fork, setsid, ignored signals, then the kill order",
        (),
        (
            *rows("attacks/test_deaths", "a_tree_that_ran_away_is_gone_when_its_end_is_told"),
            *rows("attacks/test_real_workers", "what_ran_away_and_is_deaf_to_signals_is_gone_with_its_worker"),
        ),
    ),
    Row(
        "SIGKILL of worker, nanny, zygote, supervisor",
        (),
        (
            *rows(
                "attacks/test_deaths",
                "a_tree_ends_with_its_worker_and_with_its_nanny",
                "a_zygotes_end_touches_no_worker_and_the_supervisors_end_leaves_none",
            ),
            *rows("supervisor/test_pool", "a_killed_supervisor_leaves_no_process"),
        ),
    ),
    Row(
        "a second client with a key of its own and the victim's routing id, before and after it",
        (),
        rows(
            "supervisor/test_router",
            "another_lease_with_the_victims_routing_id_gets_nothing_of_the_victims",
            "a_key_used_by_another_process_is_refused",
        ),
    ),
    Row(
        "frames too long, half a frame, frames without end, a reader that never reads",
        (),
        (
            *rows(
                "attacks/test_real_workers",
                "words_that_a_worker_may_not_say_end_it_are_counted_and_disturb_nobody",
                "a_frame_that_never_ends_is_silence",
                "frames_without_end_are_read_at_their_rate_and_disturb_nobody",
            ),
            *rows("supervisor/test_pool", "a_worker_that_never_reads_is_ended_once_it_cannot_be_told_anything"),
        ),
    ),
    Row(
        "a secret that was there before zygote and worker were",
        (),
        (
            *rows(
                "attacks/test_canaries",
                "what_the_supervisor_knew_before_and_learns_later_is_in_no_zygote_nanny_or_worker",
            ),
            *rows("supervisor/test_pool", "a_key_is_in_its_nanny_and_in_no_worker"),
        ),
    ),
    Row(
        "any of it at another access level",
        (Layer.SECCOMP,),
        rows("attacks/test_levels", "no_access_level_opens_what_is_not_the_peers"),
    ),
    Row(
        "(what has to go on working)",
        (),
        rows(
            "attacks/test_still_works",
            "files_of_the_workspace_are_read_written_renamed_and_removed",
            "a_shell_runs_programs_and_pipes",
            "git_makes_a_commit",
            "a_new_python_has_asyncio_ssl_threads_children_and_temporary_files",
            "own_children_are_waited_for_and_killed",
            "temporary_files_lie_in_the_session_folder",
        ),
    ),
)
