"""An agent program for tests: the Agent Client Protocol as plain JSON lines, its script is the prompt.

Standard library only, so that it starts fast. Each line of the peer's text that begins with a word of SCRIPT is carried
out; without one the agent says "You said: ..." Its conversation is kept in a file below HOME, so that another process
can load the session and replay it. Start flags change what it offers or how it fails:

    --no-load --resume --resume-lies --die-on-load --die-before-hello --exit-silently --version N --modes --config-mode
    --auth --ignore-term --never-cancel --replay-after --act-on-load --deaf
"""

import base64
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

FLAGS = set(sys.argv[1:])
HOME = Path(os.environ["HOME"])
OUT = sys.stdout.buffer
LOCK = threading.Lock()
CANCELLED = threading.Event()
ANSWERS: dict[object, dict] = {}
ANSWERED = threading.Condition()


def write(data: bytes) -> None:
    with LOCK:
        OUT.write(data)
        OUT.flush()


def send(message: dict) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def update(session: str, **fields: object) -> None:
    send({"method": "session/update", "params": {"sessionId": session, "update": fields}})


def say(session: str, text: str, **fields: object) -> None:
    update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": text}, **fields)


def ask(number: object, method: str, params: dict) -> dict:
    """A request to the client, and its whole answer."""
    send({"id": number, "method": method, "params": params})
    with ANSWERED:
        ANSWERED.wait_for(lambda: number in ANSWERS, timeout=30)
        return ANSWERS.pop(number, {"error": {"code": 0, "message": "no answer"}})


def memory(session: str) -> Path:
    return HOME / f"{session}.jsonl"


def remember(session: str, who: str, text: str) -> None:
    with memory(session).open("a") as file:
        file.write(json.dumps([who, text]) + "\n")


def replay(session: str) -> None:
    for line in memory(session).read_text().splitlines():
        who, text = json.loads(line)
        kind = "user_message_chunk" if who == "peer" else "agent_message_chunk"
        update(session, sessionUpdate=kind, content={"type": "text", "text": f"OLD {text}"})


def chosen(answer: dict) -> str:
    return answer["result"]["outcome"].get("optionId", "cancelled")


def permission(session: str, name: str = "perm") -> dict:
    options = [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    call = {"toolCallId": "p1", "kind": "execute", "title": None, "rawInput": {"command": "touch zz"}}
    return ask(name, "session/request_permission", {"sessionId": session, "toolCall": call, "options": options})


def question(session: str) -> dict:
    schema = {"type": "object", "properties": {"q": {"type": "string", "enum": ["red", "blue"]}}}
    params = {"sessionId": session, "mode": "form", "message": "Colour?", "requestedSchema": schema}
    return ask("elicit", "elicitation/create", params)


def tools(session: str, count: int) -> None:
    for number in range(STATE["tools"], STATE["tools"] + count):
        STATE["tools"] = number + 1
        call = f"t{number}"
        update(
            session,
            sessionUpdate="tool_call",
            toolCallId=call,
            title=f"step {number}",
            kind="execute",
            status="pending",
        )
        update(session, sessionUpdate="tool_call_update", toolCallId=call, status="in_progress")
        update(session, sessionUpdate="tool_call_update", toolCallId=call, status="completed")


def daemon() -> None:
    """A grandchild in a session of its own that no signal but SIGKILL ends, and that holds none of our pipes."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() == 0:
        for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(sign, signal.SIG_IGN)
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(600)
    os._exit(0)


def attempted(attempt: Callable[[], object]) -> str:
    """ "worked", or the name of the error."""
    try:
        attempt()
    except OSError as error:
        return f"refused: {errno.errorcode.get(error.errno or 0, type(error).__name__)}"
    return "worked"


def asked_a_model(session: str, text: str) -> str:
    """What a model says to it, as any agent program asks: by the usual variables. Its words are said as they come."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}", "content-type": "application/json"}
    url = urllib.parse.urlsplit(os.environ.get("OPENAI_BASE_URL", ""))
    if url.hostname is None:
        return "[no model]"
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    connection.request("POST", f"{url.path}/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        return f"[{answer.status} {json.loads(answer.read())['error']['message']}]"
    for line in answer:
        if CANCELLED.is_set():
            break
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                if choice["delta"].get("content"):
                    say(session, choice["delta"]["content"])
    connection.close()
    return "[over]"


def asked_the_proxy(target: str) -> str:
    """The first line of what the web proxy says to a CONNECT."""
    url = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
    token = base64.b64encode(f"{url.username}:{url.password}".encode()).decode()
    with socket.create_connection((url.hostname, url.port), timeout=30) as proxy:
        proxy.sendall(f"CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic {token}\r\n\r\n".encode())
        return proxy.recv(1000).split(b"\r\n")[0].decode()


def ruin(mebibytes: int) -> None:
    """Twelve children that take so much memory each, deaf to TERM; half of them have run away from their parent."""
    for index in range(12):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if index % 2 and os.fork():
                os._exit(0)
            held = bytearray(mebibytes << 20)
            held[::4096] = b"x" * len(held[::4096])
            time.sleep(60)
            os._exit(0)
    time.sleep(60)


def multiply(count: int, deed: Callable[[], None]) -> None:
    """So many children, each in a session of its own, or as many as there can be."""
    for _ in range(count):
        try:
            child = os.fork()
        except OSError:
            return
        if child == 0:
            os.setsid()
            deed()
            os._exit(0)


def spin() -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        pass


def wait(seconds: float) -> bool:
    """True: cancelled meanwhile."""
    return CANCELLED.wait(seconds)


def carry_out(session: str, line: str, blocks: list[dict]) -> str | None:
    """One line of the script. Returns a stop reason that ends the turn, or None."""
    word, _, rest = line.partition(" ")
    number = float(rest) if rest.replace(".", "", 1).isdigit() else 0
    match word:
        case "SAY":
            say(session, json.loads(f'"{rest}"'))
        case "STREAM":
            for index in range(int(number)):
                say(session, f"w{index} ")
        case "SLOW":
            for index in range(int(number)):
                say(session, f"s{index} ")
                if wait(0.05):
                    break
        case "MESSAGE":
            say(session, f"{rest} one", messageId="m1")
            say(session, f"{rest} two", messageId="m2")
        case "FLOOD":
            lines = []
            for index in range(int(number)):
                fields = {"sessionUpdate": "tool_call_update", "toolCallId": f"f{index % 3}", "status": "in_progress"}
                if index % 2:
                    fields = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"{index}\n"}}
                params = {"sessionId": session, "update": fields}
                lines.append(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}))
            write(("\n".join(lines) + "\n").encode())
        case "TOOLS":
            tools(session, int(number))
        case "HANG":
            say(session, "x")
            while True:
                time.sleep(60)
        case "WAIT":
            wait(60)
        case "UNTIL":
            # The test opens the gate: a file of this name in the workspace.
            while not Path(rest).exists() and not wait(0.02):
                pass
        case "PARAGRAPHS":
            count, size = (int(word) for word in rest.split())
            for index in range(count):
                say(session, f"{index:03d} ".ljust(size, "x") + "\n\n")
        case "DIE":
            os.kill(os.getpid(), signal.SIGKILL)
        case "DIE_SOON":
            threading.Timer(0.3, os._exit, (9,)).start()
        case "EXIT":
            OUT.flush()
            os._exit(int(number))
        case "CLOSE":
            os.close(1)
            time.sleep(60)
        case "CHILD":
            # A child that outlives us and holds our output open, in our group or (1) in a session of its own.
            child = subprocess.Popen(["sleep", "60"], start_new_session=bool(number))
            (HOME / "child").write_text(str(child.pid))
            os._exit(7)
        case "RUIN":
            ruin(int(number))
        case "SPIN":
            multiply(int(number), spin)
            wait(60)
        case "BOMB":
            multiply(100_000, lambda: time.sleep(60))
            wait(60)
        case "FILL":
            # So many files of a mebibyte, as fast as the disk takes them, with a look around after each.
            for index in range(int(number)):
                Path(f"fill-{index}").write_bytes(b"x" * (1 << 20))
                time.sleep(0.005)
        case "DAEMON":
            daemon()
        case "READ":
            say(session, attempted(lambda: Path(rest).read_bytes()))
        case "REACH":
            host, port = rest.split()
            say(session, attempted(lambda: socket.create_connection((host, int(port)), timeout=5).close()))
        case "MODEL":
            say(session, asked_a_model(session, rest))
        case "TUNNEL":
            say(session, asked_the_proxy(rest))
        case "ENVIRONMENT":
            say(session, json.dumps(dict(os.environ)))
        case "ASK_DNS":
            say(session, attempted(lambda: socket.getaddrinfo(rest, 80)))
        case "LINE":
            padding = "x" * int(number * 1024 * 1024)
            update(session, sessionUpdate="tool_call_update", toolCallId="big", rawOutput=padding)
        case "LONGANSWER":
            write(b'{"jsonrpc":"2.0","id":99,"result":"' + b"x" * int(number * 1024 * 1024) + b'"}\n')
        case "STDERR":
            sys.stderr.write("noise " * int(number * 1024 / 6) + "LASTWORDS\n")
            sys.stderr.flush()
        case "JUNK":
            write(b'hello\n[1,2]\n17\n"x"\nnull\n{"id":[]}\n{}\n{"id":1,"error":7}\n' + b"[" * 5000 + b"\n\xff\xfe\n\n")
        case "ODD":
            update(session, sessionUpdate="nobody_knows", x=1)
            update(session, sessionUpdate="tool_call", toolCallId="n1", title=None)
            update(session, sessionUpdate="tool_call_update", toolCallId="never", status="completed")
            update(session, sessionUpdate="agent_message_chunk", content={"type": "text"})
            send({"method": "session/update", "params": 3})
            send(
                {
                    "method": "session/update",
                    "params": {
                        "sessionId": "other",
                        "update": {
                            "sessionUpdate": "agent_message_chunk",
                            "content": {"type": "text", "text": "FOREIGN"},
                        },
                    },
                }
            )
        case "SURROGATE":
            say(session, "ok \ud83d done \U0001f600")
        case "UNKNOWN_REQUEST":
            for name in ("_vendor/drain", "fs/read_text_file", "terminal/create", "no/such"):
                answer = ask(name, name, {"sessionId": session, "path": "/etc/passwd", "command": "id"})
                say(session, f"{name}={answer.get('error', {}).get('code')} ")
            send({"method": "_vendor/note", "params": {}})
        case "REQUEST":  # REQUEST method {params}: asks the client, and says its answer
            method, _, params = rest.partition(" ")
            say(session, json.dumps(ask("req", method, {"sessionId": session, **json.loads(params)})["result"]))
        case "TWICE":  # two permissions at once
            answers: dict[str, str] = {}
            asking = [
                threading.Thread(target=lambda name=name: answers.update({name: chosen(permission(session, name))}))
                for name in ("first", "second")
            ]
            for thread in asking:
                thread.start()
                time.sleep(0.05)
            for thread in asking:
                thread.join()
            say(session, json.dumps(answers))
        case "WITHDRAW":  # asks, and changes its mind
            thread = threading.Thread(target=permission, args=(session, "gone"), daemon=True)
            thread.start()
            time.sleep(0.2)
            send({"method": "$/cancel_request", "params": {"requestId": "gone"}})
        case "PERMISSION":
            say(session, f"permission={permission(session)['result']['outcome']['outcome']}")
        case "QUESTION":
            say(session, f"question={question(session)['result']['action']}")
        case "USAGE":
            update(session, sessionUpdate="usage_update", used=1000, size=128000)
            update(session, sessionUpdate="plan", entries=[{"content": "a", "priority": "low", "status": "pending"}])
        case "THINK":
            update(session, sessionUpdate="agent_thought_chunk", content={"type": "text", "text": "SECRET THOUGHT"})
        case "CARELESS":
            update(session, sessionUpdate="current_mode_update", currentModeId="bypassPermissions")
            time.sleep(0.3)
            say(session, f"mode={STATE['mode']}")
        case "ERROR":
            raise KeyError(rest)
        case "REJECT":
            # The prompt is answered with this error, told as JSON.
            raise LookupError(rest)
        case "PID":
            say(session, str(os.getpid()))
        case "SIZED":
            # One chunk "x" on a line of exactly so many bytes.
            params = {
                "sessionId": session,
                "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}},
            }
            line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params, "pad": ""})
            write((line[:-2] + "p" * (int(number) - len(line)) + line[-2:] + "\n").encode())
        case "WHOAMI":
            say(
                session,
                json.dumps(
                    {
                        "env": sorted(os.environ),
                        "values": sorted(os.environ.values()),
                        "cwd": os.getcwd(),
                        "home": str(HOME),
                    }
                ),
            )
        case "WRITE":  # WRITE name bytes: a file in the working folder
            name, _, content = rest.partition(" ")
            Path(name).write_bytes(base64.b64decode(content))
        case "SEND":  # SEND path caption: by the first MCP server's tool
            path, _, caption = rest.partition(" ")
            say(session, called("send_file", {"path": path, "caption": caption}))
        case "SENDNOW":  # SENDNOW {"text" or "image": ...}: by the same server's other tool, if it has one
            say(session, called("send", json.loads(rest)))
        case "PICTURE":  # an image block in the answer
            update(
                session,
                sessionUpdate="agent_message_chunk",
                content={"type": "image", "data": rest, "mimeType": "image/png"},
            )
        case "LINK":  # a resource link in the answer
            where = Path(rest).absolute()
            content = {"type": "resource_link", "name": where.name, "uri": where.as_uri()}
            update(session, sessionUpdate="agent_message_chunk", content=content)
        case "BLOCKS":
            say(session, json.dumps(blocks))
        case "MODE":
            say(session, f"mode={STATE['mode']} cancels={STATE['cancels']}")
        case "HISTORY":
            say(session, str(len(memory(session).read_text().splitlines())))
        case "EMPTY":
            pass
        case "REFUSE":
            return "refusal"
        case "MAXTOKENS":
            return "max_tokens"
        case _:
            return "unknown word"
    return None


def called(tool: str, arguments: dict) -> str:
    """Start the first MCP server that the client handed over, call its tool, and its words."""
    if not SERVERS:
        return "no server"
    server = SERVERS[0]
    with subprocess.Popen(
        [server["command"], *server["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        replies = []
        for number, (method, params) in enumerate(
            [
                ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "fake"}}),
                ("tools/list", {}),
                ("tools/call", {"name": tool, "arguments": arguments}),
            ]
        ):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            program.stdin.write(json.dumps(request).encode() + b"\n")
            program.stdin.flush()
            replies.append(json.loads(program.stdout.readline()))
        program.stdin.close()
    return replies[-1]["result"]["content"][0]["text"] if "result" in replies[-1] else "no such tool"


SERVERS: list[dict] = []
STATE = {"mode": "acceptEdits", "cancels": 0, "tools": 0}


def prompted(number: object, params: dict) -> None:
    session, blocks = params["sessionId"], params["prompt"]
    text = "\n".join(
        block["text"]
        for block in blocks
        if block["type"] == "text" and not block["text"].startswith(("[note", "[bridge:"))
    )
    remember(session, "peer", text)
    stop = None
    try:
        for line in text.split("\n"):
            stop = carry_out(session, line, blocks)
            if stop == "unknown word":
                say(session, f"You said: {line}")
                stop = None
            if stop is not None or CANCELLED.is_set():
                break
    except KeyError as error:
        send({"id": number, "error": {"code": int(error.args[0]), "message": "scripted failure /secret/path"}})
        return
    except LookupError as error:
        send({"id": number, "error": json.loads(error.args[0])})
        return
    remember(session, "agent", text)
    if CANCELLED.is_set():
        if "--late" in FLAGS:
            for _ in range(5):
                say(session, "LATE ")
                time.sleep(0.1)
        if "--never-cancel" in FLAGS:
            return
        stop = "end_turn" if "--end-turn" in FLAGS else "cancelled"
    send({"id": number, "result": {"stopReason": stop or "end_turn"}})


def opened() -> dict:
    if "--modes" in FLAGS:
        names = ("acceptEdits", "default", "bypassPermissions")
        return {"modes": {"currentModeId": "acceptEdits", "availableModes": [{"id": n, "name": n} for n in names]}}
    if "--config-mode" in FLAGS:
        options = [{"value": "auto", "name": "Auto"}, {"value": "read-only", "name": "Ask"}]
        return {
            "configOptions": [
                {
                    "id": "approval",
                    "name": "Mode",
                    "category": "mode",
                    "type": "select",
                    "currentValue": "auto",
                    "options": options,
                }
            ]
        }
    return {}


def handle(message: dict) -> None:
    number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method is None:
        with ANSWERED:
            ANSWERS[number] = message
            ANSWERED.notify_all()
        return
    if "mcpServers" in params:
        SERVERS[:] = params["mcpServers"]
    match method:
        case "initialize":
            if "--exit-silently" in FLAGS:
                os._exit(0)
            sessions = {"resume": {}} if "--resume" in FLAGS or "--resume-lies" in FLAGS else {}
            send(
                {
                    "id": number,
                    "result": {
                        "protocolVersion": 2 if "--version-2" in FLAGS else 1,
                        "agentInfo": {"name": "fake-agent", "version": "7.7"},
                        "agentCapabilities": {
                            "loadSession": "--no-load" not in FLAGS,
                            "promptCapabilities": {"image": True},
                            "sessionCapabilities": sessions,
                        },
                    },
                }
            )
        case "session/new":
            if "--auth" in FLAGS:
                send({"id": number, "error": {"code": -32000, "message": "log in first"}})
                return
            if "--deaf" in FLAGS:
                time.sleep(60)
            session = f"s{os.getpid()}-{time.time_ns()}"
            memory(session).touch()
            say(session, "EARLY WORDS")
            send({"id": number, "result": {"sessionId": session, **opened()}})
        case "session/load" | "session/resume":
            session = params["sessionId"]
            if "--die-on-load" in FLAGS:
                os._exit(3)
            if (method == "session/resume" and "--resume-lies" in FLAGS) or not memory(session).exists():
                send({"id": number, "error": {"code": -32601 if "--resume-lies" in FLAGS else -32002, "message": "no"}})
                return
            replay(session)
            if "--act-on-load" in FLAGS:
                threading.Thread(target=act, args=(session,), daemon=True).start()
            send({"id": number, "result": opened()})
            if "--replay-after" in FLAGS:
                replay(session)
        case "session/set_mode":
            STATE["mode"] = params["modeId"]
            send({"id": number, "result": {}})
        case "session/set_config_option":
            STATE["mode"] = params["value"]
            send({"id": number, "result": {"configOptions": []}})
        case "session/prompt":
            CANCELLED.clear()
            threading.Thread(target=prompted, args=(number, params), daemon=True).start()
        case "session/cancel":
            STATE["cancels"] += 1
            CANCELLED.set()
        case _:
            if number is not None:
                send({"id": number, "error": {"code": -32601, "message": "unknown"}})


def act(session: str) -> None:
    """Goes on, unasked, with what it was doing; a file tells whether it was allowed to."""
    outcome = permission(session)["result"]["outcome"]["outcome"]
    (HOME / "acted").write_text(outcome)


def main() -> None:
    if "--die-before-hello" in FLAGS:
        sys.stderr.write("no licence found\n")
        sys.exit(4)
    if "--ignore-term" in FLAGS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        handle(json.loads(line))


main()
