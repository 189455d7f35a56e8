"""The MCP server beside an ACP agent: one tool, in lines over standard streams, and nothing that it dies of."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.bridge import ROOT
from worker.offer import serve
from worker.workspace import Outbox


def spoken(tmp_path: Path, *requests: Any, tools: tuple[str, ...] = ("send_file",)) -> list[Any]:
    lines = b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in requests)
    replies = io.BytesIO()
    serve(Outbox(tmp_path / "session"), tmp_path, io.BytesIO(lines), replies, tools=tools, answer_s=0)
    return [json.loads(line) for line in replies.getvalue().splitlines()]


def call(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18"])
def test_it_says_what_it_is_and_has(tmp_path: Path, version: str) -> None:
    hello, tools, pong = spoken(
        tmp_path, call(1, "initialize", protocolVersion=version), call(2, "tools/list"), call(3, "ping")
    )

    assert hello["result"]["protocolVersion"] == version
    assert [tool["name"] for tool in tools["result"]["tools"]] == ["send_file"]
    assert pong == {"jsonrpc": "2.0", "id": 3, "result": {}}


@pytest.mark.parametrize("arguments", [None, {}, {"path": 3}, {"path": ""}, {"path": "gone"}, {"path": "a\0b"}])
def test_a_call_that_makes_no_sense_is_a_failed_one(tmp_path: Path, arguments: Any) -> None:
    (reply,) = spoken(tmp_path, call(1, "tools/call", name="send_file", arguments=arguments))

    assert reply["result"]["isError"]


def test_send_is_there_for_the_session_that_has_it_and_takes_a_text_or_a_picture(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(b"png")
    (tmp_path / "session").mkdir()  # or every call is refused for want of it
    asked = [{}, {"text": "x", "image": "p.png"}, {"text": "x" * 4001}, {"image": "p" * 4097}, {"text": 3}]
    calls = [call(number, "tools/call", name="send", arguments=one) for number, one in enumerate(asked)]

    listed, *refused, lain = spoken(
        tmp_path,
        call(9, "tools/list"),
        *calls,
        call(10, "tools/call", name="send", arguments={"image": "p.png"}),
        tools=("send",),
    )
    (without,) = spoken(tmp_path, call(1, "tools/call", name="send", arguments={"text": "x"}))

    assert [tool["name"] for tool in listed["result"]["tools"]] == ["send"]
    told = [json.loads(one["result"]["content"][0]["text"]) for one in refused]
    assert [(one["sent"], one["state"], bool(one["error"])) for one in told] == [(False, "refused", True)] * 5
    assert json.loads(lain["result"]["content"][0]["text"])["state"] == "unknown", "nobody answers here"
    (offer,) = Outbox(tmp_path / "session").look()
    assert offer.send is not None and offer.send.text == ""
    assert without["error"]["code"] == -32601


def test_noise_and_unknown_words_end_nothing(tmp_path: Path) -> None:
    replies = spoken(
        tmp_path,
        b"nonsense",
        [1],
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call(1, "resources/list"),
        call(2, "tools/call", name="rm"),
        call(3, "ping"),
    )

    assert [reply["id"] for reply in replies] == [1, 2, 3]
    assert replies[0]["error"]["code"] == replies[1]["error"]["code"] == -32601


def test_a_path_is_meant_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    (tmp_path / "session").mkdir()

    (reply,) = spoken(tmp_path, call(1, "tools/call", name="send_file", arguments={"path": "a.txt", "caption": "c"}))

    assert "nobody said" in reply["result"]["content"][0]["text"]
    assert [offer.caption for offer in Outbox(tmp_path / "session").look()] == ["c"]


def test_the_program_starts_in_a_bare_interpreter_and_ends_with_its_input(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from worker.offer import main; main()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path), str(tmp_path)],
        input=json.dumps(call(1, "ping")).encode() + b"\n",
        capture_output=True,
        timeout=30,
        check=True,
    )

    assert json.loads(done.stdout)["result"] == {}
