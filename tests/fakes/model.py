"""A model server on loopback that speaks all three dialects; its script is the newest user text.

    FAIL code       that status, with the request's own headers in the error, as a careless server would
    SLOW n          n words with a pause before each; `release()` lets all of them go at once
    CALL tool {...} one tool call, and after its result "RESULT: ..."
    LEAK            answers with the key it was given
    NOUSAGE         says nothing of tokens
    anything else   "ECHO: ..." word by word

Usage is always 1000 tokens in and 10 out, unless `usage` says otherwise.
"""

import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

DEADLINE_S = 30.0


@dataclass(frozen=True)
class Seen:
    """path with its query. key: whatever header carried it"""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def key(self) -> str:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return bearer or self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or ""


class FakeModel:
    """broke_off: how many answers had no reader any more."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.usage = (1000, 10)
        self.broke_off = 0
        self._changed = threading.Condition()
        self._go = threading.Event()
        fake = self

        class Handler(_Handler):
            model = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def release(self) -> None:
        self._go.set()

    def note(self, seen: Seen | None = None, *, broke_off: int = 0) -> None:
        with self._changed:
            if seen is not None:
                self.seen.append(seen)
            self.broke_off += broke_off
            self._changed.notify_all()

    def pause(self) -> None:
        self._go.wait(0.05)

    def wait(self, *, seen: int = 0, broke_off: int = 0) -> None:
        with self._changed:
            enough = self._changed.wait_for(
                lambda: len(self.seen) >= seen and self.broke_off >= broke_off, timeout=DEADLINE_S
            )
        assert enough, f"seen {len(self.seen)}, broke off {self.broke_off}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: FakeModel

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.model.note(Seen(self.path, self._headers(), {}))
        self._reply(200, {"object": "list", "data": [{"id": "fake-1", "object": "model"}]})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(raw)
        self.model.note(Seen(self.path, self._headers(), body))
        try:
            self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            self.model.note(broke_off=1)
            self.close_connection = True

    def _headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}

    def _answer(self, body: dict[str, Any]) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("count_tokens"):
            self._reply(200, {"input_tokens": 42})
            return
        text, after_tool = _newest(body)
        if (fail := re.search(r"\bFAIL (\d+)", text)) is not None:
            self._reply(
                int(fail[1]), {"error": {"message": f"scripted; you sent {self._headers()}", "type": "server_error"}}
            )
            return
        words = re.findall(r"\S+\s*", f"ECHO: {text}")
        pausing = False
        call = re.search(r"\bCALL (\S+) (\{.*\})", text)
        if after_tool is not None:
            words, call = ["RESULT: ", after_tool[:200]], None
        elif (slow := re.search(r"\bSLOW (\d+)", text)) is not None:
            words, pausing = [f"s{n} " for n in range(int(slow[1]))], True
        elif "LEAK" in text:
            headers = self._headers()
            words = [
                headers.get("authorization", "") + headers.get("x-api-key", "") + headers.get("x-goog-api-key", "")
            ]
        usage = None if "NOUSAGE" in text else self.model.usage
        if path.endswith("/messages"):
            events = _anthropic(words, usage)
        elif "/models/" in path:
            events = _google(words, usage)
        elif path.endswith("/responses"):
            events = _responses(words, usage)
        else:
            asked = body.get("stream_options", {}).get("include_usage") is True
            events = _chat(words, call, usage if asked else None)
        if body.get("stream") is True or "streamGenerateContent" in path:
            self._stream(events, pausing=pausing)
        else:
            self._reply(200, _whole(path, words, call, usage))

    def _stream(self, events: list[str], *, pausing: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-request-id", "r1")
        self.send_header("set-cookie", "secret=1")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in events:
            self.wfile.write(event.encode())
            self.wfile.flush()
            if pausing:
                self.model.pause()

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [part.get("text", "") for part in content or [] if isinstance(part, dict)]
    return "\n".join(text for text in texts if not text.startswith(("[bridge:", "[note")))  # the bridge's own notes


def _newest(body: dict[str, Any]) -> tuple[str, str | None]:
    """The newest user text, and a tool's result behind it."""
    if "contents" in body:
        turns = [(one.get("role", "user"), _texts(one.get("parts"))) for one in body["contents"]]
    elif isinstance(body.get("input"), str):
        turns = [("user", body["input"])]
    else:
        turns = [
            (one.get("role", ""), _texts(one.get("content"))) for one in body.get("messages", body.get("input", []))
        ]
    text = next((text for role, text in reversed(turns) if role == "user" and text.strip()), "")
    return text, turns[-1][1] if turns and turns[-1][0] == "tool" else None


def _data(value: Any, event: str = "") -> str:
    return (f"event: {event}\n" if event else "") + f"data: {json.dumps(value)}\n\n"


def _chat(words: list[str], call: "re.Match[str] | None", usage: tuple[int, int] | None) -> list[str]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        return _data({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake-1",
                      "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})  # fmt: skip

    events = [chunk({"role": "assistant", "content": ""})]
    if call is not None:
        function = {"name": call[1], "arguments": call[2]}
        events.append(chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}))
    else:
        events += [chunk({"content": word}) for word in words]
    events.append(chunk({}, "tool_calls" if call is not None else "stop"))
    if usage is not None:
        told = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        events.append(_data({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake-1",
                             "choices": [], "usage": told}))  # fmt: skip
    return [*events, "data: [DONE]\n\n"]


def _responses(words: list[str], usage: tuple[int, int] | None) -> list[str]:
    events = [_data({"type": "response.created", "response": {"id": "r", "usage": None}}, "response.created")]
    item = {"type": "message", "id": "i", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    for kind, more in (("output_item", {"item": item}), ("content_part", {"item_id": "i", "part": part})):
        added = {"type": f"response.{kind}.added", "output_index": 0, "content_index": 0, **more}
        events.append(_data(added, f"response.{kind}.added"))
    kind = "response.output_text.delta"
    events += [_data({"type": kind, "item_id": "i", "output_index": 0, "delta": word}, kind) for word in words]
    whole = {**item, "status": "completed", "content": [{**part, "text": "".join(words)}]}
    done = {"type": "response.output_item.done", "output_index": 0, "item": whole}
    events.append(_data(done, "response.output_item.done"))
    told = None if usage is None else {"input_tokens": usage[0], "output_tokens": usage[1], "total_tokens": sum(usage)}
    response = {"id": "r", "status": "completed", "usage": told, "output": []}
    return [*events, _data({"type": "response.completed", "response": response}, "response.completed")]


def _anthropic(words: list[str], usage: tuple[int, int] | None) -> list[str]:
    start: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "fake-1"}
    end: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    if usage is not None:
        start["usage"] = {"input_tokens": usage[0] - 100, "cache_read_input_tokens": 100, "output_tokens": 1}
        end["usage"] = {"output_tokens": usage[1]}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    kind = "content_block_delta"
    return [
        _data({"type": "message_start", "message": start}, "message_start"),
        _data(block, "content_block_start"),
        *(_data({"type": kind, "index": 0, "delta": {"type": "text_delta", "text": word}}, kind) for word in words),
        _data({"type": "content_block_stop", "index": 0}, "content_block_stop"),
        _data(end, "message_delta"),
        _data({"type": "message_stop"}, "message_stop"),
    ]


def _google(words: list[str], usage: tuple[int, int] | None) -> list[str]:
    events = []
    for place, word in enumerate(words):
        chunk: dict[str, Any] = {"candidates": [{"content": {"role": "model", "parts": [{"text": word}]}, "index": 0}]}
        last = place == len(words) - 1
        if last:
            chunk["candidates"][0]["finishReason"] = "STOP"
        if usage is not None:
            chunk["usageMetadata"] = {
                "promptTokenCount": usage[0],
                "candidatesTokenCount": usage[1] - 3 if last else 1,
                "thoughtsTokenCount": 3 if last else 0,
            }
        events.append(_data(chunk))
    return events


def _whole(path: str, words: list[str], call: "re.Match[str] | None", usage: tuple[int, int] | None) -> dict[str, Any]:
    """An answer in one piece."""
    text = "".join(words)
    if path.endswith("/messages"):
        told = {} if usage is None else {"usage": {"input_tokens": usage[0], "output_tokens": usage[1]}}
        return {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], **told}
    if "/models/" in path:
        counts = {} if usage is None else {
            "usageMetadata": {"promptTokenCount": usage[0], "candidatesTokenCount": usage[1]}
        }  # fmt: skip
        return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}], **counts}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call is not None:
        function = {"name": call[1], "arguments": call[2]}
        message = {
            **message,
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        }
    told = {} if usage is None else {"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}
    finish = "tool_calls" if call is not None else "stop"
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "fake-1", "choices": choices, **told}
