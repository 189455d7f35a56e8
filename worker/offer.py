"""`send_file` and `send` as a local MCP server: a program of its own, started by an ACP agent inside its sandbox.

JSON-RPC in lines over standard streams. It has the worker's rights and no more; what it offers goes through the
outbox folder (workspace.py). Standard library only, so that it is up in 50 ms and small.
"""

import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from worker.workspace import ANSWER_S, LOOK_S, NOBODY_SAID, Answer, NoFile, Outbox, lay_send, unsendable

PROTOCOL = "2025-06-18"
KNOWN = ("2024-11-05", "2025-03-26", PROTOCOL)
LINE_BYTES = 1024 * 1024
SEND_FILE = {
    "name": "send_file",
    "description": "Send a file to the user's phone, pictures as pictures. `caption` is the line that comes before it. "
    "The user sees no file that is not sent.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "absolute, or relative to the working folder"},
            "caption": {"type": "string"},
        },
        "required": ["path"],
    },
}

SEND = {
    "name": "send",
    "description": "Send your operator one picture now, apart from your answer. Text is refused while they wait for the "
    "answer: it belongs there. Gives back {sent, state, error}.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "1 to 4000 characters"},
            "image": {"type": "string", "description": "a picture's path, absolute or relative to the working folder"},
        },
    },
}
TOOLS = {tool["name"]: tool for tool in (SEND_FILE, SEND)}


def main() -> None:
    """argv: the tools that this session has, then the session folder and the working folder."""
    *_, session_dir, folder = sys.argv
    serve(Outbox(Path(session_dir)), Path(folder), sys.stdin.buffer, sys.stdout.buffer, tools=sys.argv[1:-2])


def serve(
    outbox: Outbox,
    folder: Path,
    requests: BinaryIO,
    replies: BinaryIO,
    *,
    tools: Sequence[str] = ("send_file",),
    answer_s: float = ANSWER_S,
) -> None:
    """Until the agent closes its end."""
    while line := requests.readline(LINE_BYTES):
        try:
            request = json.loads(line)
        except ValueError:
            continue
        if not isinstance(request, dict) or "id" not in request or "method" not in request:
            continue
        reply = {"jsonrpc": "2.0", "id": request["id"], **_reply(request, outbox, folder, tools, answer_s)}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _reply(
    request: dict[str, Any], outbox: Outbox, folder: Path, tools: Sequence[str], answer_s: float
) -> dict[str, Any]:
    params = request.get("params")
    params = params if isinstance(params, dict) else {}
    match request["method"]:
        case "initialize":
            wanted = params.get("protocolVersion")
            version = wanted if wanted in KNOWN else PROTOCOL
            about = {"name": "bridge", "version": "0.1.0"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": [tool for name, tool in TOOLS.items() if name in tools]}}
        case "tools/call" if params.get("name") in tools:
            given = params.get("arguments")
            given = given if isinstance(given, dict) else {}
            if params["name"] == "send":
                answer = _send(given, outbox, folder, answer_s)
                text = answer.as_result()
            else:
                answer = _send_file(given, outbox, folder, answer_s)
                text = answer.in_words()
            return {"result": {"content": [{"type": "text", "text": text}], "isError": not answer.ok}}
        case _:
            return {"error": {"code": -32601, "message": "no such method or tool"}}


def _send_file(given: dict[str, Any], outbox: Outbox, folder: Path, answer_s: float) -> Answer:
    path, caption = given.get("path"), given.get("caption", "")
    if not isinstance(path, str) or not path or not isinstance(caption, str):
        return Answer(False, "`path` names the file, `caption` is text")
    return _offered(outbox, lambda: outbox.lay(folder / path, caption), answer_s)


def _send(given: dict[str, Any], outbox: Outbox, folder: Path, answer_s: float) -> Answer:
    """An MCP client has no name for a call that would mean the same call in another process: each is a new one."""
    text, image = given.get("text") or "", given.get("image") or ""
    if not isinstance(text, str) or not isinstance(image, str):
        return Answer(False, "`text` is text, `image` a path", "refused")
    if (why := unsendable(text, image)) is not None:
        return why
    return _offered(outbox, lambda: lay_send(outbox, folder, secrets.token_hex(8), text, image), answer_s)


def _offered(outbox: Outbox, lay: Callable[[], str], answer_s: float) -> Answer:
    try:
        file_id = lay()
    except NoFile as error:
        return Answer(False, str(error), "refused")
    end = time.monotonic() + answer_s
    while (answer := outbox.answer(file_id)) is None:
        if time.monotonic() > end:
            return Answer(False, NOBODY_SAID, "unknown")
        time.sleep(LOOK_S)
    return answer
