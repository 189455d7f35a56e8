"""What is wrong, and what mends it: the findings of `bridge-ctl doctor`.

In come Facts, gathered by supervisor/doctor.py; out come findings, worst first within their subject. "error" is what
keeps somebody from being served or from being isolated as promised, "warn" what may become that, "ok" what was looked at.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from protocol.content import Access
from protocol.ctl import AccountRow, Finding, Severity, StatusReply
from protocol.ids import label
from protocol.probe import STOPPED_BY, WORKED, Attempt
from protocol.spec import IsolationMode, Layer
from supervisor.core.trial import WORDS, Trial, stopped_by

HOUR_S, DAY_S = 3600.0, 86_400.0
OLD_SESSION_S = 7 * DAY_S
SKEW_S = 60.0
OLD_TOKEN_S = DAY_S  # WeChat was seen to end logins after 24 hours, after 30 days and after an idle night
MB = 1024 * 1024
OK, WARN, ERROR = Severity.OK, Severity.WARN, Severity.ERROR

REMEDIES: Mapping[Layer, str] = {
    Layer.USER_NS: (
        "allow user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu,"
        " kernel.unprivileged_userns_clone=1 on Debian, user.max_user_namespaces above 0 elsewhere;"
        " in a container a seccomp profile that allows unshare"
    ),
    Layer.PID_NS: "comes with user namespaces, or when the bridge runs as root with CAP_SYS_ADMIN",
    Layer.MOUNT_NS: (
        "comes with user namespaces, or when the bridge runs as root with CAP_SYS_ADMIN; in a container, one whose"
        " seccomp profile allows unshare and mount"
    ),
    Layer.NET_NS: "comes with user namespaces, or when the bridge runs as root with CAP_SYS_ADMIN",
    Layer.LANDLOCK: (
        "needs Linux 5.13 with landlock among the lsm= names of the kernel's command line (see"
        " /sys/kernel/security/lsm); in a container a seccomp profile that allows the landlock calls"
    ),
    Layer.SECCOMP: "needs a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
    Layer.NO_NEW_PRIVS: "needs Linux 3.5, and as root CAP_SETPCAP to give the other capabilities up",
    Layer.OWN_UID: "as root: CAP_SETUID, CAP_SETGID and CAP_CHOWN; in a container, a range of ids that holds uid_base",
    Layer.RLIMITS: "needs setrlimit; a hard limit below ours is kept",
    Layer.CGROUP: "run the bridge as a service of systemd that delegates cpu, memory and pids",
    Layer.DESCRIPTORS: "needs /proc",
    Layer.ENVIRONMENT: "its folders must be there and enterable",
}


@dataclass(frozen=True, slots=True)
class AgentFact:
    """An agent in use. users: labels of those who get it; program None: its host needs none. lacks_model: and cannot do without"""

    host: str
    program: str | None
    found: bool
    carries_contract: bool
    users: tuple[str, ...]
    lacks_model: bool = False


@dataclass(frozen=True, slots=True)
class ParkedFact:
    account: str
    peer: str
    count: int
    oldest_age_s: float


@dataclass(frozen=True, slots=True)
class FailureFact:
    """Turns of one peer that ended so within the last day."""

    account: str
    peer: str
    state: str
    count: int
    last_age_s: float


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file that is for its owner alone. mode: permission bits"""

    path: str
    mode: int
    ours: bool


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The newest event of a kind that tells of something gone wrong. detail: its data, in one line"""

    event: str
    age_s: float
    peer: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Facts:
    """throttled, suspicious: accounts (bot ids). sockets: their folder where it is not the home's own. proxy: without its
    password, empty = none. first: the trial at start. trials: those that were asked for now. models: what is wrong on the
    way to the model servers, a line each."""

    status: StatusReply
    max_queue: int
    warnings: tuple[str, ...]
    locks: tuple[str, ...]
    throttled: frozenset[str]
    suspicious: frozenset[str]
    parked: tuple[ParkedFact, ...]
    failures: tuple[FailureFact, ...]
    starts_stopped: bool
    paused_starts: Mapping[str, float]  # label: seconds left
    limits: Mapping[str, str]
    agents: tuple[AgentFact, ...]
    sockets: str
    proxy: str
    free_bytes: int
    min_free_bytes: int
    first: Trial
    trials: tuple[Trial, ...] = ()
    models: tuple[str, ...] = ()
    clocks: Mapping[str, float] = field(default_factory=dict)  # bot id: seconds by which we are ahead of WeChat
    secrets: tuple[SecretFile, ...] = ()
    last: tuple[LastFailure, ...] = ()
    gateway: str = ""  # its state in a word; empty while no agent needs it
    changed: tuple[str, ...] = ()  # settings that are not the defaults, secrets masked


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order in which they are shown."""
    found: list[Finding] = []
    found += _accounts(facts)
    found += _queues(facts)
    found += _parked(facts)
    found += _failures(facts)
    found += _sessions(facts)
    found += _agents(facts)
    found += [Finding("model", ERROR, line, fix="set it right, then start the bridge again") for line in facts.models]
    if facts.gateway:
        found.append(Finding("gateway", OK, f"the gateway to the models: {facts.gateway}"))
    found += _isolation(facts)
    found += _machine(facts)
    found += _secrets(facts)
    if facts.changed:
        found.append(Finding("settings", OK, f"set otherwise than by default: {'; '.join(facts.changed)}"))
    for trial in facts.trials:
        found += attempts(trial)
    if facts.trials:
        found.append(
            Finding(
                "probe_full", OK, "full: not tried; it shows the machine as its operator sees it, and is not isolated"
            )
        )
    return tuple(found)


def is_well(findings: tuple[Finding, ...]) -> bool:
    return all(finding.severity is not ERROR for finding in findings)


# --- the channel ----------------------------------------------------------------------------------------------


def _accounts(facts: Facts) -> Iterator[Finding]:
    rows = facts.status.accounts
    if not rows:
        yield Finding(
            "no_account", WARN, "no account is signed in: nobody can write to the bridge", fix="bridge-ctl login"
        )
    for row in rows:
        yield _state(row)
        yield _token(row)
        yield from _clock(row, facts.clocks.get(row.account))
        if row.poll_failures:
            yield Finding(
                "poll_outage",
                WARN,
                f"{_name(row)}: {_many(row.poll_failures, 'poll')} failed in a row: {row.last_error or 'no reason given'}",
                account=row.account,
                fix="check this machine's way to WeChat; polling goes on by itself",
            )
        if row.account in facts.throttled:
            yield Finding(
                "throttled",
                WARN,
                f"{_name(row)}: WeChat refused a send although the peer's budget was not spent; sends are slowed down",
                account=row.account,
                fix="nothing to do: what was refused is sent when that peer writes again",
            )
        if row.account in facts.suspicious:
            yield Finding(
                "suspicious",
                WARN,
                f"{_name(row)}: three sends in a row were taken without a message id; they may not have arrived",
                account=row.account,
                fix="ask the peer; bridge-ctl history shows which; bridge-ctl login if it goes on",
            )
    for line in facts.locks:
        yield Finding("lock", ERROR, line, fix="stop every bridge of this user and start one")


def _state(row: AccountRow) -> Finding:
    name = _name(row)
    match row.state:
        case "running":
            polled = "not polled yet" if row.last_poll_age_s is None else f"polled {_age(row.last_poll_age_s)} ago"
            hold = "" if row.last_hold_s is None else f", held for {row.last_hold_s:g} s"
            lock = f", its lock is process {row.lock.pid}'s" if row.lock.held else ""
            return Finding("account_state", OK, f"{name}: running, {polled}{hold}{lock}", account=row.account)
        case "paused":
            return Finding(
                "account_state", WARN, f"{name}: paused", account=row.account, fix=f"bridge-ctl resume {name}"
            )
        case "expired":
            return Finding(
                "account_state",
                ERROR,
                f"{name}: WeChat does not take its login any more",
                account=row.account,
                fix="bridge-ctl login",
            )
        case "locked_out":
            return Finding(
                "account_state",
                ERROR,
                f"{name}: polled by process {row.lock.pid}, not by this bridge",
                account=row.account,
                fix=f"stop process {row.lock.pid}; this bridge goes on by itself",
            )
        case "stale":
            return Finding(
                "account_state",
                ERROR,
                f"{name}: no poll finishes: {row.last_error or 'no reason given'}",
                account=row.account,
                fix="check this machine's way to WeChat",
            )
        case _:
            return Finding(
                "account_state",
                ERROR,
                f"{name}: {row.state}: {row.last_error or 'see the log'}",
                account=row.account,
                fix=f"bridge-ctl pause {name}, then bridge-ctl resume {name}; the log says what happened",
            )


def _token(row: AccountRow) -> Finding:
    age_s = row.token_age_s or 0.0
    text = f"{_name(row)}: signed in {_age(age_s)} ago"
    if age_s < OLD_TOKEN_S:
        return Finding("token_age", OK, text, account=row.account)
    return Finding(
        "token_age",
        WARN,
        f"{text}; WeChat has ended logins after 24 hours and after 30 days",
        account=row.account,
        fix="bridge-ctl login renews it at any time",
    )


def _clock(row: AccountRow, ahead_s: float | None) -> Iterator[Finding]:
    """The smallest way that a message took of late: with both clocks right it is the network's, a second or less."""
    if ahead_s is None or -SKEW_S < ahead_s < SKEW_S:
        return
    yield Finding(
        "clock",
        WARN,
        f"{_name(row)}: this machine's clock is {_age(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} WeChat's",
        account=row.account,
        fix="set it right (timedatectl set-ntp true); messages are compared with an offset meanwhile",
    )


# --- messages -------------------------------------------------------------------------------------------------


def _queues(facts: Facts) -> Iterator[Finding]:
    peers = facts.status.peers
    waiting, busy = sum(row.queued for row in peers), sum(row.turn is not None for row in peers)
    yield Finding("queue", OK, f"{_many(busy, 'turn')} running, {_many(waiting, 'message')} waiting")
    for row in peers:
        if row.queued >= facts.max_queue:
            yield Finding(
                "queue",
                WARN,
                f"{row.label}: {row.queued} messages wait; more are turned away",
                account=row.account,
                peer=row.peer,
                fix=f"bridge-ctl stop {row.label}, or a higher workers.concurrency",
            )


def _parked(facts: Facts) -> Iterator[Finding]:
    for fact in facts.parked:
        yield Finding(
            "parked",
            WARN,
            f"{label(fact.peer)}: {_many(fact.count, 'part')} of answers wait until they write again, the oldest for"
            f" {_age(fact.oldest_age_s)}",
            account=fact.account,
            peer=fact.peer,
            fix="WeChat takes no more before their next message; after 7 days they are dropped",
        )
    for row in facts.status.peers:
        if row.budget_left == 0 and row.parked_parts == 0:
            yield Finding(
                "budget",
                OK,
                f"{row.label}: as many messages were sent as WeChat takes before they write again",
                account=row.account,
                peer=row.peer,
            )


def _failures(facts: Facts) -> Iterator[Finding]:
    for fact in facts.failures:
        dead = fact.state == "dead"
        yield Finding(
            "dead_letter" if dead else "failed_turns",
            ERROR if dead else WARN,
            f"{label(fact.peer)}: {_many(fact.count, 'message')} {_ENDED[fact.state]} within a day, the last"
            f" {_age(fact.last_age_s)} ago",
            account=fact.account,
            peer=fact.peer,
            fix="the log has the reason; they were told, and may write it again",
        )

    for one in facts.last:
        whose = f"{label(one.peer)}: " if one.peer else ""
        yield Finding(
            "last_failure", OK, f"{whose}the last {one.event} {_age(one.age_s)} ago: {one.detail or '-'}", peer=one.peer
        )


def _sessions(facts: Facts) -> Iterator[Finding]:
    for row in facts.status.peers:
        if row.session_age_s is not None and row.session_age_s >= OLD_SESSION_S:
            yield Finding(
                "session_age",
                OK,
                f"{row.label}: one conversation for {_age(row.session_age_s)}; a long one costs more tokens a turn",
                account=row.account,
                peer=row.peer,
                fix=f"bridge-ctl reset {row.label} starts a fresh one",
            )


_ENDED = {"dead": "set aside after the bridge died over them twice", "failed": "failed"}


# --- workers --------------------------------------------------------------------------------------------------


def _agents(facts: Facts) -> Iterator[Finding]:
    for fact in facts.agents:
        whose = ", ".join(fact.users)
        if fact.program is not None and not fact.found:
            yield Finding(
                "agent_missing",
                ERROR,
                f"{whose}: the agent program {fact.program} is not found",
                fix="install it, or name its whole path in agent.command; the bridge's PATH may differ from yours",
            )
        elif fact.lacks_model:
            yield Finding(
                "agent_model",
                ERROR,
                f"{whose}: {fact.host} has no model to talk to",
                fix='[agent] model = "openai:NAME" (or anthropic:, google:, openai-compatible: with base_url), the key in'
                " the variable that api_key_env names; then bridge-ctl reload",
            )
        elif not fact.carries_contract:
            yield Finding(
                "agent_contract",
                WARN,
                f"{whose}: an agent of host {fact.host} is not told that it talks over a phone chat",
                fix="say so in its own instruction file",
            )
        else:
            yield Finding("agent", OK, f"{whose}: {fact.host}{f', {fact.program}' if fact.program else ''}")
    if facts.starts_stopped:
        yield Finding(
            "starts_stopped",
            ERROR,
            "no worker is started: those of three peers died before they were ready",
            fix="mend what the log says, then bridge-ctl reload; or bridge-ctl doctor --probe, which starts one to see",
        )
    for name, left_s in facts.paused_starts.items():
        yield Finding(
            "starts_paused",
            ERROR,
            f"{name}: its worker died three times before it was ready; the next is started in {_age(left_s)}",
            fix="the log has the reason",
        )


def _isolation(facts: Facts) -> Iterator[Finding]:
    isolation = facts.status.isolation
    if isolation.mode == IsolationMode.OFF:
        yield Finding(
            "isolation",
            WARN,
            "isolation is switched off: every worker reaches what the operator reaches",
            fix='workers.isolation = "required"',
        )
    elif isolation.level == "weak":
        required = isolation.mode == IsolationMode.REQUIRED
        yield Finding(
            "isolation",
            ERROR if required else WARN,
            "isolation is weak: " + ("only the operator is served" if required else "guests are served all the same"),
            fix='see the missing layers; workers.isolation = "best-effort" serves guests nevertheless',
        )
    else:
        severity = OK if isolation.level == "strong" else WARN
        yield Finding("isolation", severity, f"isolation is {isolation.level} ({isolation.mode})")
    if facts.first.failed and isolation.mode != IsolationMode.OFF:
        yield Finding(
            "isolation_trial",
            ERROR,
            f"the trial worker of the start did not come to its end: {facts.first.failed}",
            fix="bridge-ctl doctor --probe tries again; the log has the reason",
        )
    else:
        yield from (
            Finding(
                "isolation_missing",
                WARN,
                f"{layer.value} is in place and does not hold" if layer in facts.first.broken else f"no {layer.value}",
                fix=REMEDIES[layer],
            )
            for layer in facts.first.lacking
        )
    watched = [name for name, kind in facts.limits.items() if kind == "watched"]
    is_open = [name for name, kind in facts.limits.items() if name != "network" and kind not in ("watched", "capped")]
    if watched:
        yield Finding(
            "limits_watched",
            OK,
            f"watched, and ended when over their limit, but not capped by the kernel: {', '.join(watched)}",
        )
    if is_open:
        yield Finding("limits_open", WARN, f"not limited: {', '.join(is_open)}", fix=REMEDIES[Layer.RLIMITS])


def attempts(trial: Trial) -> Iterator[Finding]:
    """One trial's attempts, each a finding: who stopped it, or that nobody did."""
    if trial.failed:
        yield Finding(
            f"probe_{trial.access.value}",
            ERROR,
            f"{trial.access.value}: no trial: {trial.failed}",
            fix="the log has the reason",
        )
    for attempt, end in trial.ends:
        if attempt is Attempt.KNOW_USERS and Layer.OWN_UID in trial.layers:
            continue  # a uid of its own takes the place of a user namespace
        what = f"{trial.access.value}: {WORDS[attempt]}"
        if end == WORKED:
            fix = "; ".join(f"{layer.value}: {REMEDIES[layer]}" for layer in STOPPED_BY[attempt])
            yield Finding(f"probe_{attempt.value}", ERROR, f"{what}: worked", fix=fix)
        else:
            layer = stopped_by(attempt, end, trial.layers)
            by = layer.value if layer is not None else "the system itself"
            yield Finding(f"probe_{attempt.value}", OK, f"{what}: stopped by {by} ({end})")


TRIED = (Access.CHAT, Access.READONLY, Access.WORKSPACE)


# --- the machine ----------------------------------------------------------------------------------------------


def _machine(facts: Facts) -> Iterator[Finding]:
    free = f"{facts.free_bytes // MB} MB are free on the home's disk"
    if facts.free_bytes < facts.min_free_bytes:
        yield Finding(
            "disk",
            ERROR,
            f"{free}, less than workers.min_free_mb ({facts.min_free_bytes // MB}): no turn starts",
            fix="make room there",
        )
    else:
        yield Finding("disk", OK, free)
    if facts.sockets:
        yield Finding("sockets", OK, f"the home's path is too long for sockets: they lie in {facts.sockets}")
    if facts.proxy:
        yield Finding("proxy", OK, f"WeChat is reached through the proxy {facts.proxy}")
    for line in facts.warnings:
        yield Finding("found_odd", WARN, line)


def _secrets(facts: Facts) -> Iterator[Finding]:
    for one in facts.secrets:
        if not one.ours:
            yield Finding(
                "secret_file", ERROR, f"{one.path}: belongs to another user", fix="give it back to yourself with chown"
            )
        elif one.mode & 0o077:
            yield Finding(
                "secret_file",
                ERROR,
                f"{one.path}: open to other users (mode {one.mode:04o})",
                fix=f"chmod 600 {one.path}",
            )
    if facts.secrets and all(one.ours and not one.mode & 0o077 for one in facts.secrets):
        yield Finding("secret_file", OK, f"{_many(len(facts.secrets), 'secret file')}, each for its owner alone")


# --- words ----------------------------------------------------------------------------------------------------


def _name(row: AccountRow) -> str:
    return row.name or row.account


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _age(seconds: float) -> str:
    whole = max(0, int(seconds))
    for unit, name in ((int(DAY_S), "d"), (int(HOUR_S), "h"), (60, "min")):
        if whole >= 2 * unit:
            return f"{whole // unit} {name}"
    return f"{whole} s"
