"""`send_file` as a local MCP server: a program of its own, started by an ACP agent inside its sandbox.

JSON-RPC in lines over standard streams, one tool. It has the worker's rights and no more; what it offers goes through the
outbox folder (workspace.py). Standard library only, so that it is up in 50 ms and small.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from worker.workspace import ANSWER_S, LOOK_S, NOBODY_SAID, Answer, NoFile, Outbox

PROTOCOL = "2025-06-18"
KNOWN = ("2024-11-05", "2025-03-26", PROTOCOL)
LINE_BYTES = 1024 * 1024
TOOL = {
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


def main() -> None:
    """argv: the session folder, the working folder."""
    serve(Outbox(Path(sys.argv[-2])), Path(sys.argv[-1]), sys.stdin.buffer, sys.stdout.buffer)


def serve(outbox: Outbox, folder: Path, requests: BinaryIO, replies: BinaryIO, *, answer_s: float = ANSWER_S) -> None:
    """Until the agent closes its end."""
    while line := requests.readline(LINE_BYTES):
        try:
            request = json.loads(line)
        except ValueError:
            continue
        if not isinstance(request, dict) or "id" not in request or "method" not in request:
            continue
        reply = {"jsonrpc": "2.0", "id": request["id"], **_reply(request, outbox, folder, answer_s)}
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _reply(request: dict[str, Any], outbox: Outbox, folder: Path, answer_s: float) -> dict[str, Any]:
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
            return {"result": {"tools": [TOOL]}}
        case "tools/call" if params.get("name") == TOOL["name"]:
            given = params.get("arguments")
            answer = _send(given if isinstance(given, dict) else {}, outbox, folder, answer_s)
            return {"result": {"content": [{"type": "text", "text": answer.in_words()}], "isError": not answer.ok}}
        case _:
            return {"error": {"code": -32601, "message": "no such method or tool"}}


def _send(given: dict[str, Any], outbox: Outbox, folder: Path, answer_s: float) -> Answer:
    path, caption = given.get("path"), given.get("caption", "")
    if not isinstance(path, str) or not path or not isinstance(caption, str):
        return Answer(False, "`path` names the file, `caption` is text")
    try:
        file_id = outbox.lay(folder / path, caption)
    except NoFile as error:
        return Answer(False, str(error))
    end = time.monotonic() + answer_s
    while (answer := outbox.answer(file_id)) is None:
        if time.monotonic() > end:
            return Answer(False, NOBODY_SAID)
        time.sleep(LOOK_S)
    return answer
