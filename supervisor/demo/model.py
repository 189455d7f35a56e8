"""The demo's own model: a script, not a mind, behind an OpenAI-compatible endpoint, so that the built-in agent has somebody to
talk to without a key. It streams, uses tools, asks for a permission, writes a file and shows a plan.

What it does follows from a word of the newest message; what it says, in Chinese or English, from its language.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PATH = "/sim/model/v1"
PACE_S = 0.02  # a word, so that one sees it stream

_CJK = re.compile("[\u4e00-\u9fff]")
_HELLO = (
    "I am a script that plays a model for this demo: no key, no network, not clever. Everything around me is real: "
    "the bridge, your own worker process, its sandbox.\n\nTry: *write* a file, *run* a command, make a *plan*, *ask* me something.",
    "我是演示用的脚本，假装成一个模型：不用密钥，不连网，也不聪明。除我以外都是真的：桥、你专属的进程、它的沙箱。\n\n"
    "可以试试：写 一个文件、运行 一条命令、做个 计划、问 我点什么。",
)
_PLAN = (
    "# A small plan\n\n1. Look at the workspace\n2. Write `hello.txt`\n3. Say that it is done",
    "# 一个小计划\n\n1. 看看工作目录\n2. 写 `hello.txt`\n3. 说一声做完了",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the script does: words, or one tool call."""

    words: str = ""
    tool: str = ""
    arguments: dict[str, Any] | None = None


def answer(messages: list[dict[str, Any]]) -> Turn:
    """The next step of a conversation as chat completions have it. Pure."""
    if not messages:
        return Turn(_HELLO[0])
    newest = next((_text(one) for one in reversed(messages) if one.get("role") == "user"), "")
    chinese = 1 if _CJK.search(newest) else 0
    if messages[-1].get("role") == "tool":
        result = _text(messages[-1])
        return Turn(("It came back with:\n\n", "结果是：\n\n")[chinese] + result)
    low = newest.lower()
    if re.search(r"\bplan\b|计划", low):
        return Turn(tool="exit_plan_mode", arguments={"plan": _PLAN[chinese]})
    if re.search(r"\bwrite\b|写", low):
        text = ("Hello from the worker.\n", "你好，来自工作进程。\n")[chinese]
        return Turn(tool="write", arguments={"path": "hello.txt", "content": text})
    if re.search(r"\brun\b|运行", low):
        return Turn(tool="bash", arguments={"command": "date; ls -l"})
    if re.search(r"\bask\b|问", low):
        question = ("Tea or coffee?", "喝茶还是咖啡？")[chinese]
        options = (["tea", "coffee"], ["茶", "咖啡"])[chinese]
        return Turn(tool="ask", arguments={"question": question, "options": options, "other": True})
    return Turn(_HELLO[chinese])


def routes() -> list[Route]:
    return [Route(f"{PATH}/chat/completions", _complete, methods=["POST"])]


async def _complete(request: Request) -> Response:
    body = await request.json()
    turn = answer(body.get("messages", []))
    offered = {one.get("function", {}).get("name") for one in body.get("tools", [])}
    if turn.tool and turn.tool not in offered:
        turn = Turn(f"Here I may not use “{turn.tool}”.")
    if body.get("stream") is True:
        return StreamingResponse(_stream(turn), media_type="text/event-stream")
    return JSONResponse(_whole(turn))


async def _stream(turn: Turn) -> AsyncIterator[str]:
    yield _chunk({"role": "assistant", "content": ""})
    if turn.tool:
        yield _chunk({"tool_calls": [{"index": 0, **_call(turn)}]})
    for word in re.findall(r"\S+\s*|\s+", turn.words):
        yield _chunk({"content": word})
        await asyncio.sleep(PACE_S)
    yield _chunk({}, "tool_calls" if turn.tool else "stop")
    yield f"data: {json.dumps({**_HEAD, 'object': 'chat.completion.chunk', 'choices': [], 'usage': _USAGE})}\n\n"
    yield "data: [DONE]\n\n"


_HEAD: dict[str, Any] = {"id": "demo", "created": 1, "model": "demo"}
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {json.dumps({**_HEAD, 'object': 'chat.completion.chunk', 'choices': choices})}\n\n"


def _whole(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.words or None}
    if turn.tool:
        message["tool_calls"] = [_call(turn)]
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls" if turn.tool else "stop"}]
    return {**_HEAD, "object": "chat.completion", "choices": choices, "usage": _USAGE}


def _call(turn: Turn) -> dict[str, Any]:
    function = {"name": turn.tool, "arguments": json.dumps(turn.arguments or {})}
    return {"id": "call_demo", "type": "function", "function": function}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or [] if isinstance(part, dict) and "text" in part)
