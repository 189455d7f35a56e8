"""The demo's scripted model: what it does for which word, in which language, and that it speaks the wire."""

import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from supervisor.demo import model
from supervisor.demo.model import answer


def said(text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, **more}]


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("write me a file", "write"),
        ("写个文件", "write"),
        ("please RUN it", "bash"),
        ("运行一下", "bash"),
        ("make a plan", "exit_plan_mode"),
        ("做个计划", "exit_plan_mode"),
        ("ask me", "ask"),
        ("问我一个问题", "ask"),
        ("hello", ""),
        ("planet", ""),
    ],
)
def test_a_word_of_the_newest_message_decides_what_happens(text: str, tool: str) -> None:
    assert answer(said(text)).tool == tool


def test_it_answers_in_the_language_it_was_spoken_to() -> None:
    assert "脚本" in answer(said("你好")).words
    assert "script" in answer(said("hello")).words
    assert answer([*said("运行"), {"role": "tool", "content": "42"}]).words == "结果是：\n\n42"


def test_words_in_several_parts_are_heard() -> None:
    parts = [{"type": "text", "text": "[bridge: late]"}, {"type": "text", "text": "run"}, {"type": "image_url"}]

    assert answer([{"role": "user", "content": parts}]).tool == "bash"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(model, "PACE_S", 0.0)
    return TestClient(Starlette(routes=model.routes()))


def test_what_may_not_be_used_is_not_called(client: TestClient) -> None:
    told = client.post(f"{model.PATH}/chat/completions", json={"messages": said("run")}).json()

    assert told["choices"][0]["message"]["content"] == "Here I may not use “bash”."


def test_a_stream_is_the_answer_word_by_word_with_its_tokens_at_the_end(client: TestClient) -> None:
    body = {"messages": said("hello"), "stream": True}

    lines = client.post(f"{model.PATH}/chat/completions", json=body).text.split("\n\n")

    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    words = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert words == answer(said("hello")).words
    assert chunks[-1]["usage"]["total_tokens"] == 120
    assert lines[-2] == "data: [DONE]"


def test_a_stream_can_be_a_tool_call(client: TestClient) -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    body = {"messages": said("run"), "stream": True, "tools": tools}

    text = client.post(f"{model.PATH}/chat/completions", json=body).text

    assert '"tool_calls"' in text and '"finish_reason": "tool_calls"' in text
