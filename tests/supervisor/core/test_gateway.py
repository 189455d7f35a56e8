"""supervisor/core/gateway.py: tokens, calls, headers, refusals and allowances."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.gateway import Dialect, Issue, Upstream
from protocol.ids import AccountId, Generation, LeaseKey, PeerId
from supervisor.core.gateway import (
    BLOCK_TOKENS,
    BODY_BYTES,
    CALLS,
    CALLS_PER_WORKER,
    Desk,
    Holder,
    Ledger,
    Refusal,
    Why,
    call_for,
    digest,
    headers_back,
    headers_on,
    spoken,
    token_in,
    upstream_for,
)
from supervisor.core.policy import Agent

KEY = "sk-canary"
OPENAI = Upstream(Dialect.OPENAI, "https://api.openai.com/v1", KEY)


def lease(peer: str = "alice", generation: int = 1) -> LeaseKey:
    return LeaseKey(AccountId("a"), PeerId(peer), Generation(generation))


def issue(token: str, key: LeaseKey | None = None, *, limited: bool = False) -> Issue:
    return Issue(digest(token), key or lease(), OPENAI, limited, False)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (Agent(model="openai:gpt-5", api_key_env="K"), OPENAI),
        (Agent(model="anthropic:claude", api_key_env="K"), Upstream(Dialect.ANTHROPIC, "https://api.anthropic.com", KEY)),
        (Agent(model="google:gemini", api_key_env="K"), Upstream(Dialect.GOOGLE, "https://generativelanguage.googleapis.com", KEY)),
        (Agent(model="openai-compatible:q", base_url="http://127.0.0.1:1/v1/", api_key_env="K"), Upstream(Dialect.OPENAI, "http://127.0.0.1:1/v1", KEY)),
        (Agent(model="anthropic:m", base_url="https://example.org/anthropic", api_key_env="K"), Upstream(Dialect.ANTHROPIC, "https://example.org/anthropic", KEY)),
        (Agent(api_key_env="ANTHROPIC_API_KEY"), Upstream(Dialect.ANTHROPIC, "https://api.anthropic.com", KEY)),
        (Agent(base_url="http://127.0.0.1:1/v1"), Upstream(Dialect.OPENAI, "http://127.0.0.1:1/v1", KEY)),
    ],
)  # fmt: skip
def test_the_settings_name_one_model_server(agent: Agent, expected: Upstream) -> None:
    assert upstream_for(agent, KEY) == expected


@pytest.mark.parametrize(
    ("agent", "key", "names"),
    [
        (Agent(), None, "[agent] model"),
        (Agent(model="gpt-5", api_key_env="MY_KEY"), "k", "[agent] model"),
        (Agent(model="openai:gpt-5", api_key_env="MY_KEY"), None, "MY_KEY"),
        (Agent(model="openai:gpt-5"), None, "api_key_env"),
        (Agent(model="openai-compatible:q"), None, "base_url"),
        (Agent(host="gemini"), None, "GEMINI_API_KEY"),
        (Agent(host="codex", model="openai:gpt-5"), None, "OPENAI_API_KEY, where codex has its key"),
    ],
)
def test_what_is_missing_is_named(agent: Agent, key: str | None, names: str) -> None:
    told = upstream_for(agent, key)

    assert isinstance(told, str) and names in told


def test_a_model_server_of_ones_own_needs_no_key() -> None:
    found = upstream_for(Agent(model="openai-compatible:q", base_url="http://127.0.0.1:1/v1"), None)

    assert isinstance(found, Upstream) and found.key == ""
    assert "authorization" not in headers_on({"authorization": "Bearer worker"}, found)


@pytest.mark.parametrize(
    ("method", "path", "served", "expected"),
    [
        ("POST", "/v1/chat/completions", Dialect.OPENAI, "/chat/completions"),
        ("POST", "/v1/responses", Dialect.OPENAI, "/responses"),
        ("POST", "/v1/messages", Dialect.ANTHROPIC, "/v1/messages"),
        ("POST", "/v1/messages/count_tokens", Dialect.ANTHROPIC, "/v1/messages/count_tokens"),
        ("POST", "/v1beta/models/gemini-3.0-pro:streamGenerateContent", Dialect.GOOGLE, "/v1beta/models/gemini-3.0-pro:streamGenerateContent"),
        ("POST", "/v1beta/models/g:generateContent", Dialect.GOOGLE, "/v1beta/models/g:generateContent"),
        ("GET", "/v1/models", Dialect.OPENAI, "/models"),
        ("GET", "/v1/models", Dialect.ANTHROPIC, "/v1/models"),
    ],
)  # fmt: skip
def test_the_calls_of_three_dialects_are_known(method: str, path: str, served: Dialect, expected: str) -> None:
    call = call_for(method, path, served)

    assert call is not None and call.path == expected


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files",
        "/v1/responses/r_1",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/../v1/files",
        "/v1beta/models/../files:generateContent",
        "/v1beta/models/a/b:generateContent",
        "/v1beta/models/%2e%2e:generateContent",
        "/v1beta/models/a:generateContent/x",
        "/v1beta/models/a:batchGenerateContent",
        "/v1beta/models/a:generateContent\n",
        "/",
    ],
)
def test_everything_else_is_no_call(path: str) -> None:
    for method in ("POST", "GET", "DELETE", "PUT"):
        for served in Dialect:
            assert call_for(method, path, served) is None


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ({"authorization": "Bearer t1"}, "t1"),
        ({"authorization": "bearer  t1 "}, "t1"),
        ({"x-api-key": "t1"}, "t1"),
        ({"x-goog-api-key": "t1"}, "t1"),
        ({"authorization": "Basic dDE="}, ""),
        ({"authorization": "t1"}, ""),
        ({}, ""),
    ],
)
def test_a_token_is_taken_from_each_librarys_header(headers: dict[str, str], token: str) -> None:
    assert token_in(headers) == token


def test_the_workers_token_never_goes_on_and_the_key_never_comes_back() -> None:
    sent = {
        "authorization": "Bearer t1",
        "x-api-key": "t1",
        "cookie": "a",
        "host": "h",
        "anthropic-beta": "b",
        "content-type": "c",
    }
    for dialect, name in (
        (Dialect.OPENAI, "authorization"),
        (Dialect.ANTHROPIC, "x-api-key"),
        (Dialect.GOOGLE, "x-goog-api-key"),
    ):
        upstream = Upstream(dialect, "https://x", KEY)
        passed = headers_on(sent, upstream)
        assert passed[name].endswith(KEY) and "t1" not in str(passed)
        assert set(passed) == {"content-type", "anthropic-beta", "accept-encoding", name}

        back = headers_back(
            {"content-type": "text/event-stream", "set-cookie": "s", "x-request-id": f"for {KEY}", "retry-after": "3",
             "x-ratelimit-remaining-tokens": "5", "server": "s"}, upstream)  # fmt: skip
        assert back == {"content-type": "text/event-stream", "retry-after": "3", "x-ratelimit-remaining-tokens": "5"}
    assert KEY not in repr(upstream)


def test_a_token_means_one_worker_and_ends_with_the_next_generation() -> None:
    desk = Desk()
    desk.issue(issue("first"))
    desk.issue(issue("others", lease("bob")))
    first = desk.whose("first")
    assert first is not None and first.key == lease()

    desk.issue(issue("second", lease(generation=2)))

    assert desk.whose("first") is None and first.revoked
    second = desk.whose("second")
    assert second is not None and second.key == lease(generation=2)
    desk.revoke(lease(generation=1))  # late news of a worker long replaced
    assert desk.whose("second") is second
    desk.revoke(lease(generation=2))
    assert desk.whose("second") is None
    assert desk.whose("others") is not None
    assert desk.whose("") is None


def test_one_workers_calls_and_all_calls_together_are_limited() -> None:
    desk = Desk()
    for number in range(CALLS // CALLS_PER_WORKER + 1):
        desk.issue(issue(f"t{number}", lease(f"p{number}")))
    holders = [desk.whose(f"t{number}") for number in range(CALLS // CALLS_PER_WORKER + 1)]

    for holder in holders[:-1]:
        assert holder is not None
        assert [desk.enter(holder) for _ in range(CALLS_PER_WORKER)] == [None] * CALLS_PER_WORKER
    first, last = holders[0], holders[-1]
    assert first is not None and last is not None
    refused, full = desk.enter(first), desk.enter(last)

    assert refused is not None and refused.why is Why.TOO_MANY and refused.status == 429
    assert full is not None and full.why is Why.BUSY and full.status == 503
    desk.leave(first)
    assert desk.enter(last) is None


def test_long_requests_are_limited_one_by_one_and_together() -> None:
    desk = Desk()
    too_long = desk.take_bytes(10, BODY_BYTES - 9)
    assert too_long is not None and too_long.why is Why.TOO_LONG
    desk.give_bytes(10)
    for _ in range(4):
        assert desk.take_bytes(BODY_BYTES, 0) is None
    too_many = desk.take_bytes(1, 0)
    assert too_many is not None and too_many.why is Why.BUSY
    desk.give_bytes(BODY_BYTES + 1)
    assert desk.take_bytes(1, 0) is None


@pytest.mark.parametrize("why", Why)
@pytest.mark.parametrize("dialect", Dialect)
def test_a_refusal_is_an_error_in_the_words_of_its_dialect(why: Why, dialect: Dialect) -> None:
    error = json.loads(Refusal(why, "because").body(dialect))["error"]

    assert error["message"] == "because"


def test_a_spent_budget_is_no_reason_to_try_again() -> None:
    refusal = Refusal(Why.BUDGET, "spent")

    assert refusal.status == 403
    assert json.loads(refusal.body(Dialect.ANTHROPIC))["error"]["type"] == "permission_error"
    assert json.loads(refusal.body(Dialect.OPENAI))["error"]["type"] == "permission_error"
    assert spoken("/v1/messages") is Dialect.ANTHROPIC
    assert spoken("/v1beta/models/x") is Dialect.GOOGLE
    assert spoken("/v1/whatever") is Dialect.OPENAI


@given(limit=st.integers(1, 200_000), costs=st.lists(st.integers(0, 60_000), max_size=40))
def test_no_more_than_the_days_limit_is_ever_lent(limit: int, costs: list[int]) -> None:
    """The gateway asks when its loan is used up; an answer may be longer than what was left of it, by itself alone."""
    ledger, used, holder = Ledger(), 0, Holder(issue("t", limited=True))
    for cost in costs:
        if holder.must_ask:
            block = ledger.lend(limit=limit, used=used)
            assert 0 <= block <= BLOCK_TOKENS
            holder.lent(block)
            if block == 0:
                assert used >= limit
                break
        assert 0 < holder.left == ledger.lent <= BLOCK_TOKENS
        holder.left -= cost
        used += cost
        ledger.spent(cost)
    assert used - max(costs, default=0) < limit


def test_a_gateway_that_dies_takes_one_block_with_it_at_most() -> None:
    ledger = Ledger()
    assert ledger.lend(limit=50_000, used=0) == BLOCK_TOKENS

    after = Ledger()  # nothing of that block was reported

    assert after.lend(limit=50_000, used=0) == BLOCK_TOKENS
    assert ledger.lend(limit=50_000, used=0) == BLOCK_TOKENS
    assert ledger.lend(limit=50_000, used=0) == 10_000
    assert ledger.lend(limit=50_000, used=0) == 0
