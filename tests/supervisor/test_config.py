"""Settings: what an operator may write, and what they read when they got it wrong."""

import ast
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.agents import HOSTS
from protocol.content import Access
from protocol.spec import IsolationMode
from supervisor.config import (
    ConfigError,
    Environment,
    OnDamage,
    PeersDamaged,
    Settings,
    WeChat,
    changed,
    load,
    read_environment,
)
from supervisor.core.hooks import Hook
from supervisor.core.policy import AgentOverrides, Auth, PeerOverrides
from supervisor.home import Home

NOT_BUILT_YET = {"auth", "discovery", "footer"}  # taken, and without effect so far
RELEASES = sorted((Path(__file__).parent.parent / "data").glob("bridge-*.toml"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def configure(home: Home, text: str | bytes, peers: str | bytes = "") -> Home:
    for file, content in ((home.bridge_toml, text), (home.peers_toml, peers)):
        if content:
            file.write_bytes(content.encode() if isinstance(content, str) else content)
    return home


def complaint(home: Home) -> str:
    with pytest.raises(ConfigError) as caught:
        load(home)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "[workers]\n", "\ufeff", "\r\n"])
def test_an_empty_file_works_and_gives_the_defaults(home: Home, text: str) -> None:
    assert load(configure(home, text)) == Settings()


def test_no_file_at_all_gives_the_defaults(home: Home) -> None:
    assert load(home) == Settings()


@pytest.mark.parametrize("file", RELEASES, ids=lambda file: file.name)
def test_the_settings_of_every_release_still_load(home: Home, file: Path) -> None:
    """B-111"""
    assert load(configure(home, file.read_text())).warnings == ()


def test_the_newest_release_file_holds_every_key_with_its_default(home: Home) -> None:
    document = tomllib.loads(RELEASES[-1].read_text())
    hints = get_type_hints(Settings)

    for section, table in document.items():
        if is_dataclass(hints[section]):
            assert list(table) == [f.name for f in fields(hints[section])], section

    settings = load(configure(home, RELEASES[-1].read_text()))
    assert settings == Settings(file="bridge.toml")


def test_no_setting_is_taken_and_then_read_by_nobody() -> None:
    hints = get_type_hints(Settings)
    keys = {
        key.name
        for section in fields(Settings)
        if is_dataclass(hints[section.name])
        for key in fields(hints[section.name])
    }
    root = Path(__file__).parents[2]
    sources = [path for room in ("supervisor", "worker", "protocol") for path in (root / room).rglob("*.py")]
    read = {
        node.attr
        for path in sources
        if path.name != "config.py"
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Attribute)
    }

    assert keys - read - {hook.value for hook in Hook} == NOT_BUILT_YET


def test_a_file_with_byte_order_mark_and_windows_line_ends_is_read(home: Home) -> None:
    """B-105"""
    text = '\ufeff[workers]\r\nconcurrency = 7\r\n[snippets]\r\nstandup = "昨天做了什么？"\r\n'

    settings = load(configure(home, text))

    assert settings.workers.concurrency == 7
    assert settings.snippets == {"standup": "昨天做了什么？"}


def test_every_kind_of_value_arrives_in_its_type(home: Home) -> None:
    settings = load(
        configure(
            home,
            """
            [workers]
            idle_minutes = 0.05
            turn_timeout_minutes = 3
            isolation = "best-effort"
            [agent]
            host = "acp"
            command = ["/usr/bin/agent", "--acp"]
            env = { LANG = "C.UTF-8" }
            auth = "own"
            [accounts.work]
            max_turns_per_hour = 60
            [peers."alice@im.wechat"]
            tools = []
            access = "chat"
            agent = { host = "echo", dialog_minutes = 0.05 }
            """,
        )
    )

    assert settings.workers.idle_minutes == 0.05
    assert isinstance(settings.workers.turn_timeout_minutes, float)
    assert settings.workers.isolation is IsolationMode.BEST_EFFORT
    assert settings.agent.command == ("/usr/bin/agent", "--acp")
    assert settings.agent.env == {"LANG": "C.UTF-8"}
    assert settings.agent.auth is Auth.OWN
    assert settings.accounts == {"work": PeerOverrides(max_turns_per_hour=60)}
    assert settings.peers["alice@im.wechat"] == PeerOverrides(
        tools=(), access=Access.CHAT, agent=AgentOverrides(host="echo", dialog_minutes=0.05)
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[workers]\nconcurrency = "two"',
            'bridge.toml: workers.concurrency: expected an integer from 1 to 64, got "two"',
        ),
        ("[workers]\nconcurrency = 0", "bridge.toml: workers.concurrency: expected an integer from 1 to 64, got 0"),
        ("[workers]\nconcurrency = 65", "bridge.toml: workers.concurrency: expected an integer from 1 to 64, got 65"),
        (
            "[workers]\nconcurrency = true",
            "bridge.toml: workers.concurrency: expected an integer from 1 to 64, got true",
        ),
        ("[workers]\nconcurrency = 2.0", "bridge.toml: workers.concurrency: expected an integer from 1 to 64, got 2.0"),
        (
            "[workers]\nstop_grace_s = nan",
            "bridge.toml: workers.stop_grace_s: expected a number from 0.001 to 600, got nan",
        ),
        (
            "[workers]\nstop_grace_s = inf",
            "bridge.toml: workers.stop_grace_s: expected a number from 0.001 to 600, got inf",
        ),
        (
            '[workers]\nisolation = "on"',
            'bridge.toml: workers.isolation: expected one of "required", "best-effort", "off", got "on"',
        ),
        ("[agent]\nfooter = 1", "bridge.toml: agent.footer: expected true or false, got 1"),
        ("[agent]\nmodel = 1979-05-27", "bridge.toml: agent.model: expected a text in quotes, got 1979-05-27"),
        ("workers = 3", "bridge.toml: workers: expected a table, got 3"),
        ("[[peers.list]]\na = 1", "bridge.toml: peers.list: expected a table, got [a table]"),
        (
            '[admission]\nallowed_peers = "alice"',
            'bridge.toml: admission.allowed_peers: expected a list of texts, such as ["a", "b"], got "alice"',
        ),
        (
            "[admission]\nallowed_peers = [1]",
            'bridge.toml: admission.allowed_peers: expected a list of texts, such as ["a", "b"], got [1]',
        ),
        (
            '[admission]\nallowed_peers = ["*"]',
            'bridge.toml: admission.allowed_peers: "*" is a wildcard; name each peer by id or label',
        ),
        ('[peers."*"]', 'bridge.toml: peers."*": "*" is a wildcard; name each peer by id or label'),
        ('[peers." "]', 'bridge.toml: peers." ": expected an id or a label, got an empty name'),
        (
            "[accounts.work]\nadmitted = true",
            "bridge.toml: accounts.work.admitted: admits one peer at a time: it belongs to [peers.ID]",
        ),
        (
            "[wechat]\nmax_reply_char = 10",
            "bridge.toml: wechat.max_reply_char: unknown key; did you mean wechat.max_reply_chars?",
        ),
        ("[worker]\nconcurrency = 2", "bridge.toml: worker: unknown key; did you mean workers?"),
        ("concurrency = 2", "bridge.toml: concurrency: unknown key; did you mean workers.concurrency?"),
        (
            '[peers."a@im.wechat"]\ntool = []',
            'bridge.toml: peers."a@im.wechat".tool: unknown key; did you mean peers."a@im.wechat".tools?',
        ),
        ("peers_by_hand = {}", "bridge.toml: peers_by_hand: unknown key; did you mean peers?"),
        (
            "[wechat]\nsend_budget = 3\nsend_budget_reserve = 3",
            "bridge.toml: wechat.send_budget_reserve: expected an integer below wechat.send_budget, which is 3, got 3",
        ),
        (
            '[wechat]\nbase_url = "http://ilink.example"',
            "bridge.toml: wechat.base_url: expected a URL that starts with https:// (http:// on loopback only)",
        ),
        (
            '[wechat]\nbase_url = "https://[ilink"',
            'bridge.toml: wechat.base_url: expected a URL such as "https://ilinkai.weixin.qq.com"',
        ),
        (
            '[agent]\nbase_url = "127.0.0.1:11434"',
            'bridge.toml: agent.base_url: expected a URL such as "http://127.0.0.1:11434/v1"',
        ),
        (
            '[agent]\nbase_url = "https://models.example:99999/v1"',
            'bridge.toml: agent.base_url: expected a URL such as "http://127.0.0.1:11434/v1"',
        ),
        (
            '[agent]\nbase_url = "http://models.example/v1"\napi_key_env = "KEY"',
            "bridge.toml: agent.base_url: expected a URL that starts with https://, since it is sent a key",
        ),
        (
            '[wechat]\nbase_url = "ilink"',
            'bridge.toml: wechat.base_url: expected a URL such as "https://ilinkai.weixin.qq.com"',
        ),
        (
            '[agent]\nworkspace = "src"',
            'bridge.toml: agent.workspace: expected an absolute path, or one below ~/, got "src"',
        ),
        (
            '[agent]\nhost = "vim"',
            "bridge.toml: agent.host: expected one of " + ", ".join(f'"{name}"' for name in HOSTS) + ', got "vim"',
        ),
        (
            '[agent]\nhost = "acp"',
            'bridge.toml: agent.command: host "acp" needs a program, such as command = ["PROGRAM", "ARGUMENT"]',
        ),
        (
            '[peers.al]\nagent = { host = "acp" }',
            'bridge.toml: peers.al.agent.command: host "acp" needs a program, such as command = ["PROGRAM", "ARGUMENT"]',
        ),
        (
            '[snippets]\n"a b" = "x"',
            'bridge.toml: snippets."a b": expected a name of up to 32 letters, digits, _ and -',
        ),
    ],
)
def test_a_wrong_value_is_named_with_file_key_and_what_is_expected(home: Home, text: str, line: str) -> None:
    """B-079, B-105"""
    assert complaint(configure(home, text)) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[workers]\nconcurrency = 1\nconcurrency = 2\n",
            "bridge.toml: line 3: workers.concurrency is set twice; keep one of them",
        ),
        (
            "[workers]\nidle_minutes = 1\n\n[agent]\nread = [\n'/a',\n]\nread = [\n'/b',\n]\n",
            "bridge.toml: line 10: agent.read is set twice; keep one of them",
        ),
        ("[workers]\n[agent]\n[workers]\n", "bridge.toml: line 3: [workers] is set twice; keep one of them"),
        ("workers.concurrency = 1\n[workers]\n", "bridge.toml: line 2: [workers] is set twice; keep one of them"),
        (
            "[peers.alice@im.wechat]\n",
            "bridge.toml: line 1, column 13: Expected ']' at the end of a table declaration; "
            'such a name needs quotes: [peers."alice@im.wechat"]',
        ),
        ("[workers]\r\nconcurrency =\r\n", "bridge.toml: line 2, column 14: Invalid value"),
        (b"[snippets]\nx = '\xb0\xa1'\n", "bridge.toml: line 2: not UTF-8 (byte 0xb0); save it as UTF-8"),
        (b"\xff\xfe[\x00", "bridge.toml: line 1: not UTF-8 (byte 0xff); save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_toml_is_named_with_the_place(home: Home, text: str | bytes, line: str) -> None:
    """B-105, B-115"""
    assert complaint(configure(home, text)) == line


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_no_file_whatever_ends_in_anything_but_settings_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    home = configure(Home(tmp_path_factory.mktemp("home")), data)

    try:
        load(home)
    except ConfigError as error:
        assert str(error).startswith("bridge.toml: ")
        assert str(error).isprintable()


@given(key=st.text(max_size=20), value=st.integers() | st.floats() | st.booleans() | st.text(max_size=30))
def test_any_value_under_any_key_of_workers_is_taken_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    import tomli_w

    home = Home(tmp_path_factory.mktemp("home"))
    try:
        text = tomli_w.dumps({"workers": {key: value}}).encode()
    except UnicodeEncodeError:
        return  # TOML cannot hold lone surrogates

    with pytest.raises(ConfigError) as caught:
        load(configure(home, text))

    assert str(caught.value).startswith("bridge.toml: ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    ['[agent]\napi_key_env = "sk-secret-1"', "[agent]\nenv = { K = 17441 }", '[wechat]\nproxy = "ftp://me:secret@h"'],
)
def test_a_secret_pasted_into_the_wrong_place_is_not_repeated(home: Home, text: str) -> None:
    line = complaint(configure(home, text))

    assert "secret" not in line
    assert "17441" not in line


@pytest.mark.parametrize("entries", ["[]", '[""]', '[" "]'])
def test_an_empty_or_blank_allow_list_admits_nobody(home: Home, entries: str) -> None:
    settings = load(configure(home, f"[admission]\nallowed_peers = {entries}"))

    assert settings.admission.allowed_peers == ()
    assert len(settings.warnings) == (entries != "[]")


def test_a_bubble_above_the_measured_size_is_warned_about(home: Home) -> None:
    settings = load(configure(home, "[wechat]\nmax_reply_chars = 4000"))

    assert settings.wechat.max_reply_chars == 4000
    assert settings.warnings == (
        "bridge.toml: wechat.max_reply_chars: above 2000; WeChat may cut bubbles without an error",
    )


@pytest.mark.parametrize("below", ["", "..", "../..", "run", "sessions/somebody", "not/there/yet"])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("agent", "agent.read"),
        ("agent", "agent.write"),
        ("agent", "agent.workspace"),
        ("accounts.work.agent", "accounts.work.agent.read"),
        ('peers."alice@im.wechat".agent', 'peers."alice@im.wechat".agent.write'),
    ],
)
def test_no_agent_is_given_the_bridges_own_folder_nor_one_around_or_inside_it(
    home: Home, below: str, section: str, key: str
) -> None:
    path = home.path / below
    value = f'"{path}"' if key.endswith("workspace") else f'["/usr/share", "{path}"]'
    configure(home, f"[{section}]\n{key.rpartition('.')[2]} = {value}")

    line = complaint(home)

    assert line.startswith(f"bridge.toml: {key}: ")
    assert line.endswith(f"would open {home.path}, where the bridge keeps its secrets")


def test_a_link_to_the_bridges_folder_and_an_entry_of_peers_toml_are_refused_too(home: Home, tmp_path: Path) -> None:
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    configure(home, "", f'[peers."alice@im.wechat".agent]\nread = ["{link}"]')

    assert complaint(home).startswith('peers.toml: peers."alice@im.wechat".agent.read: ')


def test_a_folder_beside_the_bridges_is_fine(home: Home, tmp_path: Path) -> None:
    beside = tmp_path.parent / f"{tmp_path.name}-beside"

    settings = load(configure(home, f'[agent]\nread = ["{beside}"]\nwrite = ["/srv"]\nworkspace = "/srv/notes"'))

    assert settings.agent.read == (str(beside),)


def test_a_config_file_that_was_asked_for_must_exist(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: no such file$"):
        load(home, home.path / "missing.toml")


def test_another_config_file_is_named_in_messages(home: Home) -> None:
    other = home.path / "other.toml"
    other.write_text("a = 1")

    with pytest.raises(ConfigError, match=r"^other\.toml: a: unknown key"):
        load(home, other)


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ('["raed"]', 'host "echo" knows no tool "raed"; expected "read", "write"'),
        ('["mcp:"]', 'host "echo" knows no tool "mcp:"'),
    ],
)
def test_an_unknown_tool_fails_with_peer_host_and_the_names_that_would_do(home: Home, tools: str, reason: str) -> None:
    line = complaint(configure(home, f"[peers.alice]\ntools = {tools}"))

    assert line.startswith(f"bridge.toml: peers.alice.tools: {reason}")


def test_known_tools_and_those_of_mcp_servers_are_taken(home: Home) -> None:
    settings = load(configure(home, '[peers.alice]\ntools = ["read", "mcp:files"]'))

    assert settings.peers["alice"].tools == ("read", "mcp:files")


@pytest.mark.parametrize("tool", ["oven", "mcp:files", "grep"])
def test_a_host_with_a_closed_list_of_tools_takes_no_other_name(home: Home, tool: str) -> None:
    pi = '[agent]\nhost = "pi"\ncommand = ["pi"]\n'

    line = complaint(configure(home, f'{pi}[peers.alice]\ntools = ["read", "{tool}"]'))

    assert line.startswith(
        f'bridge.toml: peers.alice.tools: host "pi" knows no tool "{tool}"; expected "read", "write"'
    )
    assert load(configure(home, f'{pi}[peers.alice]\ntools = ["read", "ask"]')).peers["alice"].tools == ("read", "ask")


def test_a_list_that_a_peers_host_cannot_enforce_fails_and_an_empty_one_does_not(home: Home) -> None:
    acp = '[agent]\nhost = "acp"\ncommand = ["agent"]\n'

    line = complaint(configure(home, acp + '[peers.alice]\ntools = ["read"]'))

    assert line == (
        'bridge.toml: peers.alice.tools: host "acp" cannot enforce a list of tools; '
        'leave it out, or say tools = [] with access = "chat"'
    )
    assert load(configure(home, acp + "[peers.alice]\ntools = []")).peers["alice"].tools == ()


def test_a_tool_list_is_checked_against_the_agents_of_all_accounts_the_peer_may_write_to(home: Home) -> None:
    work = '[accounts.work]\nagent = { host = "acp", command = ["agent"] }\n'

    assert "cannot enforce" in complaint(configure(home, work + '[peers.alice]\ntools = ["read"]'))
    assert "cannot enforce" in complaint(configure(home, work + '[peers."work/alice"]\ntools = ["read"]'))
    assert load(configure(home, work + '[peers."home/alice"]\ntools = ["read"]'))


def test_peers_toml_wins_over_bridge_toml_key_by_key(home: Home) -> None:
    by_hand = '[peers.alice]\ntools = ["read"]\nmax_turns_per_hour = 3\n[peers.bob]\nnetwork = true\n'
    stored = "[peers.alice]\nadmitted = true\nmax_turns_per_hour = 9\n[peers.carol]\nadmitted = false\n"

    settings = load(configure(home, by_hand, stored))

    assert settings.peers == {
        "alice": PeerOverrides(admitted=True, tools=("read",), max_turns_per_hour=9),
        "bob": PeerOverrides(network=True),
        "carol": PeerOverrides(admitted=False),
    }


def test_a_tool_list_in_peers_toml_is_checked_and_named_by_that_file(home: Home) -> None:
    acp = '[agent]\nhost = "acp"\ncommand = ["agent"]\n'

    line = complaint(configure(home, acp, '[peers.alice]\ntools = ["read"]'))

    assert line.startswith('peers.toml: peers.alice.tools: host "acp" cannot enforce')


@pytest.mark.parametrize("damage", [b"\x00\x01", b"[peers", b"\xff", b"[peers.a]\nadmitted = true\nadmitted = false\n"])
def test_a_damaged_peers_toml_is_set_aside_at_the_start_and_the_rest_keeps_working(home: Home, damage: bytes) -> None:
    configure(home, "[workers]\nconcurrency = 3", damage)

    settings = load(home, on_damage=OnDamage.SET_ASIDE)

    assert settings.workers.concurrency == 3
    assert settings.peers == {}
    (warning,) = settings.warnings
    (aside,) = home.path.glob("peers.toml.damaged-*")
    assert aside.name in warning
    assert aside.read_bytes() == damage
    assert not home.peers_toml.exists()


def test_a_damaged_peers_toml_changes_nothing_at_a_reload(home: Home) -> None:
    configure(home, "", "[peers")

    with pytest.raises(PeersDamaged, match=r"^peers\.toml: line 1: the file ends too early"):
        load(home)

    assert home.peers_toml.exists()


def test_only_peers_may_stand_in_peers_toml(home: Home) -> None:
    line = complaint(configure(home, "", "[workers]\nconcurrency = 3"))

    assert line == "peers.toml: workers: unknown key; did you mean peers?"


# --- the environment


def environment(**variables: str) -> Environment:
    return read_environment(variables)


def test_the_environment_is_read_once_and_empty_variables_count_as_absent() -> None:
    assert environment(BRIDGE_HOME="", BRIDGE_LOG="", NO_COLOR="", WATCHDOG_USEC="") == environment(
        BRIDGE_HOME="", BRIDGE_LOG="", NO_COLOR="", WATCHDOG_USEC=""
    )
    nothing = environment(BRIDGE_HOME="", NO_COLOR="")
    assert (nothing.home, nothing.no_color, nothing.watchdog_s) == (None, False, None)

    full = environment(BRIDGE_HOME="/h", BRIDGE_LOG="DEBUG", NO_COLOR="1", WATCHDOG_USEC="30000000", NOTIFY_SOCKET="@n")
    assert (full.home, full.log, full.no_color, full.watchdog_s, full.notify_socket) == (
        "/h",
        "debug",
        True,
        30.0,
        "@n",
    )


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(
        ConfigError, match='^BRIDGE_LOG: expected one of "debug", "info", "warning", "error", got "loud"$'
    ):
        environment(BRIDGE_LOG="loud")


def test_the_api_key_comes_from_the_variable_that_the_settings_name_and_is_never_shown(home: Home) -> None:
    agent = load(configure(home, '[agent]\napi_key_env = "MY_KEY"')).agent
    with_key = environment(MY_KEY="sk-1", OTHER="x")

    assert with_key.api_key(agent) == "sk-1"
    assert with_key.api_key(Settings().agent) is None
    assert "sk-1" not in repr(with_key)


@pytest.mark.parametrize(
    ("proxy", "used"), [("none", None), ("env", "http://p:1"), ("http://mine:3128", "http://mine:3128")]
)
def test_proxy_variables_count_only_when_asked_for(proxy: str, used: str | None) -> None:
    assert environment(HTTPS_PROXY="http://p:1").proxy(WeChat(proxy=proxy)) == used


def test_what_differs_from_the_defaults_is_told_without_a_secret(home: Home) -> None:
    toml = (
        '[wechat]\nproxy = "http://me:PASSWORD@proxy:3128"\nsend_budget = 10\n'
        '[agent]\nhost = "echo"\nenv = { MY_TOKEN = "SECRET" }\n[workers]\nisolation = "best-effort"\nidle_minutes = 5\n'
        '[snippets]\nstandup = "PRIVATE WORDS"\n[peers."alice@im.wechat"]\naccess = "chat"\n'
    )

    lines = changed(load(configure(home, toml)))

    assert set(lines) >= {
        "wechat.proxy = http://proxy:3128",
        "agent.env = {MY_TOKEN = ***}",
        'workers.isolation = "best-effort"',
        "workers.idle_minutes = 5.0",
        "[snippets] 1",
        "[peers] 1",
    }
    assert not any(secret in "".join(lines) for secret in ("PASSWORD", "SECRET", "PRIVATE", "alice"))
    assert not any(line.startswith("wechat.send_budget") for line in lines)
    assert changed(Settings()) == ()
