"""A Pi for tests: its RPC mode as plain JSON lines, its script is the prompt.

Standard library only, so that it starts fast. It plays Pi and the bridge's extension together: it greets, takes the
prompt's envelope apart, and names dialogs as the extension does. Each line of the peer's text that begins with a word
of the script is carried out; without one it says "You said: ..." Start flags of its own:

    --old VERSION   --no-extension   --die-on-open   --die-on-session   --deaf   --ignore-term   --never-settles
    --hesitate
    --nameless      not a word for --version
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ARGUMENTS = sys.argv[1:]
OUT = sys.stdout.buffer
LOCK = threading.Lock()
ABORTED = threading.Event()
ANSWERS: dict[str, dict] = {}
ANSWERED = threading.Condition()
COUNTERS = {"dialog": 0}
USAGE = {"input": 5, "output": 3, "cacheRead": 2, "cacheWrite": 0, "totalTokens": 10}


def flag(name: str, default: str = "") -> str:
    return ARGUMENTS[ARGUMENTS.index(name) + 1] if name in ARGUMENTS else default


def write(data: bytes) -> None:
    with LOCK:
        OUT.write(data)
        OUT.flush()


def send(**record: object) -> None:
    write(json.dumps(record).encode() + b"\n")


def update(**event: object) -> None:
    send(type="message_update", usage=USAGE, assistantMessageEvent=event)


def say(text: str) -> None:
    update(type="text_delta", contentIndex=0, delta=text)


def ask(**fields: object) -> dict:
    COUNTERS["dialog"] += 1
    number = f"d{COUNTERS['dialog']}"
    send(type="extension_ui_request", id=number, **fields)
    with ANSWERED:
        ANSWERED.wait_for(lambda: number in ANSWERS, timeout=int(str(fields.get("timeout", 30_000))) / 1000)
        answer = ANSWERS.pop(number, {"nobody": True})
    answer.pop("type", None)
    answer.pop("id", None)
    return answer


def bridge(**about: object) -> str:
    return "bridge:" + json.dumps(about)


def tool(name: str, arguments: dict, *, failed: bool = False) -> None:
    call = {"toolCallId": f"c-{name}", "toolName": name}
    send(type="tool_execution_start", args=arguments, **call)
    send(type="tool_execution_update", args=arguments, partialResult={"content": []}, **call)
    send(type="tool_execution_end", result={"content": []}, isError=failed, **call)


def session_file() -> Path:
    return Path(flag("--session-dir")) / f"2026_{flag('--session-id')}.jsonl"


def memory() -> list[str]:
    source = Path(flag("--fork")) if "--fork" in ARGUMENTS and not session_file().exists() else session_file()
    return [json.loads(line)["said"] for line in source.read_text().splitlines()[1:]] if source.exists() else []


def remember(text: str) -> None:
    said = [*memory(), text]
    header = {"type": "session", "version": 3, "id": flag("--session-id"), "cwd": os.getcwd()}
    session_file().parent.mkdir(parents=True, exist_ok=True)
    session_file().write_text("".join(json.dumps(one) + "\n" for one in [header, *({"said": one} for one in said)]))


def message_end(reason: str, error: str = "") -> None:
    message = {"role": "assistant", "content": [], "usage": USAGE, "stopReason": reason}
    send(type="message_end", message=message | ({"errorMessage": error} if error else {}))


def carry_out(line: str) -> tuple[str, str] | None:
    """One line. Returns a stop reason other than "stop", with its error, or two empty ones; None: not of the script."""
    word, _, rest = line.partition(" ")
    match word:
        case "SAY":
            say(json.loads(f'"{rest}"'))
        case "SLOW":
            for index in range(int(rest)):
                say(f"s{index} ")
                if ABORTED.wait(0.05):
                    break
        case "TOOL":
            tool(rest or "read", {"path": "a"}, failed=rest == "broken")
        case "TODO":
            tool("todo", {"items": [{"text": "one", "status": "completed"}, {"text": "two", "status": "pending"}]})
        case "CONFIRM":
            say(json.dumps(ask(method="confirm", title="Sure?", message="Really?")))
        case "TIMED":
            say(json.dumps(ask(method="confirm", title="Sure?", message="", timeout=int(rest))))
            ABORTED.wait(1)  # the host has a clock of its own, which starts later
        case "SELECT":
            options = ["red", "blue"]
            say(
                json.dumps(
                    ask(
                        method="select",
                        title=bridge(about="question", title="Colour?", other=bool(rest)),
                        options=options,
                    )
                )
            )
        case "INPUT":
            say(json.dumps(ask(method="input", title="Name?", placeholder="first and last")))
        case "EDITOR":
            say(json.dumps(ask(method="editor", title="Edit", prefill="old")))
        case "PERMIT":
            about = bridge(about="permission", tool="bash", input={"command": rest})
            say(json.dumps(ask(method="confirm", title=about, message="")))
        case "PLAN":
            say(json.dumps(ask(method="editor", title=bridge(about="plan", title="T", file="p.md"), prefill="1. a")))
        case "TWICE":
            first = threading.Thread(target=lambda: ask(method="input", title="One?"))
            first.start()
            say(json.dumps(ask(method="input", title="Two?")))
            first.join()
        case "BAD_DIALOG":
            say(json.dumps(ask(method="select", title="Nothing?", options=[])))
        case "NOTIFY":
            send(type="extension_ui_request", id="n", method="notify", message=rest, notifyType="warning")
        case "STOP":
            return rest, ""
        case "FAIL":
            return "error", rest
        case "RETRY":
            message_end("error", "503: overloaded")
            send(type="agent_end", messages=[], willRetry=True)
            send(type="auto_retry_start", attempt=1, maxAttempts=3, delayMs=1, errorMessage="503")
            send(type="agent_start")
            say("better")
        case "DIE":
            os.kill(os.getpid(), signal.SIGKILL)
        case "EXIT":
            sys.stderr.write("no more\n")
            sys.stderr.flush()
            os._exit(int(rest))
        case "CLOSE":
            os.close(1)
            time.sleep(60)
        case "CHILD":
            subprocess.Popen(["sleep", "60"])
            os._exit(7)
        case "JUNK":
            write(b'junk\n[1,2]\n7\n\n{"type":5}\n{"no":1}\n{"type":"message_update"}\n')
            write(b'{"type":"message_update","assistantMessageEvent":{"type":"text_delta","delta":"\\ud83d!"}}\n')
            say("a\u2028b\r\0")
        case "LONG":
            write(b'{"type":"x","pad":"' + b"x" * int(rest) + b'"}\n')
        case "STDERR":
            sys.stderr.write("x" * int(rest))
            sys.stderr.flush()
        case "HANG":
            say("x")
            time.sleep(60)
        case "ARGUMENTS":
            say(json.dumps(ARGUMENTS))
        case "ENVIRONMENT":
            say(json.dumps(dict(os.environ)))
        case "MODELS":
            say((Path(os.environ["PI_CODING_AGENT_DIR"]) / "models.json").read_text())
        case _:
            return None
    return "", ""


def run(command: dict) -> None:
    said = json.loads(command["message"])
    lines = said["text"].split("\n")
    number = command["id"]
    if "HANDLED" in lines:
        send(id=number, type="response", command="prompt", success=True, data={"disposition": "handled"})
        return
    if "REFUSE" in lines:
        send(id=number, type="response", command="prompt", success=False, error="429 rate limit")
        return
    ABORTED.clear()
    send(id=number, type="response", command="prompt", success=True, data={"disposition": "started"})
    send(type="agent_start")
    reason, error = "stop", ""
    acted = False
    for line in lines:
        found = carry_out(line)
        acted = acted or found is not None
        if found is not None and found[0]:
            reason, error = found
        if ABORTED.is_set():
            break
    if "MEMORY" in lines:
        say(json.dumps(memory()))
    elif "PICTURES" in lines:
        say(json.dumps([[one["mimeType"], len(one["data"])] for one in command.get("images", [])]))
    elif "NOTES" in lines:
        say(json.dumps(said["notes"]))
    elif not acted and lines != ["SILENT"]:
        say(f"You said: {said['text']}")
    remember(said["text"])
    update(type="text_end", contentIndex=0, content="")
    message_end("aborted" if ABORTED.is_set() else reason, error)
    send(type="turn_end", message={}, toolResults=[])
    send(type="agent_end", messages=[], willRetry=False)
    if "--never-settles" not in ARGUMENTS:
        send(type="agent_settled", aborted=ABORTED.is_set())
        send(type="message_update", assistantMessageEvent={"type": "text_delta", "delta": "words behind the end"})


def main() -> None:
    if "--hesitate" in ARGUMENTS:
        time.sleep(30)
    if "--version" in ARGUMENTS:
        print("" if "--nameless" in ARGUMENTS else flag("--old", "1.6.0"), flush=True)
        return
    if "--die-on-open" in ARGUMENTS or ("--die-on-session" in ARGUMENTS and session_file().exists()):
        sys.stderr.write("Error: Model not found\n")
        sys.exit(1)
    if "--ignore-term" in ARGUMENTS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--no-extension" not in ARGUMENTS:
        send(type="extension_ui_request", id="s", method="setStatus", statusKey="bridge-supervisor", statusText="1")
    send(type="agent_start")
    update(type="text_delta", contentIndex=0, delta="words before the first prompt")
    send(type="agent_settled", aborted=False)
    for line in sys.stdin.buffer:
        command = json.loads(line)
        match command["type"]:
            case "get_state":
                data = {"model": {"id": "m", "contextWindow": 1000}, "sessionId": flag("--session-id")}
                send(id=command["id"], type="response", command="get_state", success=True, data=data)
            case "prompt":
                threading.Thread(target=run, args=(command,), daemon=True).start()
            case "abort":
                if "--deaf" not in ARGUMENTS:
                    ABORTED.set()
            case "extension_ui_response":
                with ANSWERED:
                    ANSWERS[command["id"]] = command
                    ANSWERED.notify_all()


main()
