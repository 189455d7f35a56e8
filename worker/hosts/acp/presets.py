"""What each known agent is told so that it stays in its peer's folders, asks first, and finds models at the gateway.

Pure but for write_files(). Files lie below the program's HOME, which is `home` in the session folder: an agent's state
and history are this peer's alone, and those of several agents do not meet. Where a file is named here it is written at
every start, so that what an agent changed in it is undone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protocol.agents import HOSTS, OPENCODE_TOOLS, Approvals, tools_of
from protocol.content import Access
from protocol.errors import FailureKind
from worker.hosts.base import HostError, SessionSpec

CONTEXT_TOKENS = 128_000
ANSWER_TOKENS = 8_000
PROVIDERS = ("openai", "openai-compatible", "anthropic", "google")


@dataclass(frozen=True, slots=True)
class Preset:
    """files: text by path below HOME. arguments: behind the command. session_meta: `_meta` of a new or loaded session"""

    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    session_meta: dict[str, Any] = field(default_factory=dict)

    def applied_to(self, spec: SessionSpec) -> SessionSpec:
        """Our variables win over the operator's: they are what keeps an agent in its folders."""
        return replace(spec, command=(*spec.command, *self.arguments), env=(*spec.env, *self.env.items()))


def preset_for(spec: SessionSpec) -> Preset:
    """Nothing for an agent that is not known."""
    known = _PRESETS.get(spec.agent)
    return Preset() if known is None else known(spec)


def write_files(session_dir: Path, files: Mapping[str, str]) -> None:
    """raises HostError"""
    for name, text in files.items():
        path = session_dir / "home" / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.new")
            new.write_text(text, encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise HostError(FailureKind.OTHER, f"{path.name} cannot be written: {error.strerror}") from error


def model_name(model: str) -> str:
    """Without the provider, which says where the gateway sends a call and is no part of the model's name."""
    provider, colon, name = model.partition(":")
    return name if colon and provider in PROVIDERS else model


def _home(spec: SessionSpec, *names: str) -> str:
    return str(spec.session_dir.joinpath("home", *names))


def _claude(spec: SessionSpec) -> Preset:
    model = model_name(spec.model)
    return Preset(
        env={
            "CLAUDE_CONFIG_DIR": _home(spec, ".claude"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            **({"ANTHROPIC_MODEL": model} if model else {}),
        },
        session_meta={
            "claudeCode": {"options": {"allowDangerouslySkipPermissions": False}},
            "systemPrompt": {"append": spec.contract},
        },
    )


def _codex(spec: SessionSpec) -> Preset:
    """Keeps the modes in which it asks: they are its own sandbox's too."""
    lines = [
        'model_provider = "gateway"',
        *_toml(model=model_name(spec.model)),
        'approval_policy = "untrusted"',
        'sandbox_mode = "read-only"',
        "check_for_update_on_startup = false",
        "",
        "[model_providers.gateway]",
        *_toml(name="gateway", base_url=f"{spec.gateway_url}/v1", wire_api="responses", env_key="OPENAI_API_KEY"),
    ]
    return Preset(
        files={".codex/config.toml": _lines(lines), ".codex/AGENTS.md": spec.contract},
        env={"CODEX_HOME": _home(spec, ".codex")},
    )


def _gemini(spec: SessionSpec) -> Preset:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    model = model_name(spec.model)
    return Preset(
        files={".gemini/settings.json": json.dumps(settings), ".gemini/GEMINI.md": spec.contract},
        env={"GEMINI_CLI_NO_RELAUNCH": "1"},
        arguments=("-m", model) if model else (),
    )


def _qwen(spec: SessionSpec) -> Preset:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "general": {"disableAutoUpdate": True},
        "privacy": {"usageStatisticsEnabled": False},
    }
    model = model_name(spec.model)
    return Preset(
        files={".qwen/settings.json": json.dumps(settings), ".qwen/QWEN.md": spec.contract},
        env={"OPENAI_MODEL": model} if model else {},
    )


def _opencode(spec: SessionSpec) -> Preset:
    model = model_name(spec.model) or "default"
    entry = {
        "attachment": True,
        "modalities": {"input": ["text", "image"], "output": ["text"]},
        "limit": {"context": CONTEXT_TOKENS, "output": ANSWER_TOKENS},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{spec.gateway_url}/v1", "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {model: entry},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"gateway/{model}",
        "small_model": f"gateway/{model}",
        "permission": opencode_permissions(spec),
        "provider": {"gateway": provider},
    }
    return Preset(
        files={
            ".config/opencode/opencode.json": json.dumps(config),
            ".config/opencode/AGENTS.md": spec.contract,
        },
        # It talks with itself over TCP. At `full` it shares the machine's network, and takes any port that is free.
        arguments=() if spec.access is Access.FULL else ("--port", str(HOSTS["opencode"].own_port)),
        env={
            "OPENCODE_CONFIG": _home(spec, ".config", "opencode", "opencode.json"),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            **{
                f"XDG_{kind}_HOME": _home(spec, *folder)
                for kind, folder in {
                    "CONFIG": (".config",),
                    "DATA": (".local", "share"),
                    "STATE": (".local", "state"),
                    "CACHE": (".cache",),
                }.items()
            },
        },
    )


def opencode_permissions(spec: SessionSpec) -> dict[str, str]:
    """The last rule that fits counts, so that what is allowed stands behind what is not."""
    asks = "allow" if spec.approvals is Approvals.ALLOW else "ask"
    if spec.tools is None:
        return {"bash": asks, "edit": asks, "webfetch": asks, "external_directory": asks}
    allowed = tools_of(spec.access, spec.sends, spec.tools)
    names = [name for tool, names in OPENCODE_TOOLS.items() if tool in allowed for name in names]
    return {"*": "deny"} | {name: asks if name == "bash" else "allow" for name in names}


def _goose(spec: SessionSpec) -> Preset:
    """Written after its documentation, and not tried: no registry has it."""
    model = model_name(spec.model)
    return Preset(
        files={".config/goose/.goosehints": spec.contract},
        env={
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODE": "approve",
            "GOOSE_DISABLE_KEYRING": "1",
            "OPENAI_HOST": spec.gateway_url,
            **({"GOOSE_MODEL": model} if model else {}),
        },
    )


def _kimi(spec: SessionSpec) -> Preset:
    lines = [
        'default_model = "gateway"',
        "telemetry = false",
        "",
        "[providers.gateway]",
        *_toml(type="openai", base_url=f"{spec.gateway_url}/v1", api_key=spec.token),
        "",
        "[models.gateway]",
        *_toml(provider="gateway", model=model_name(spec.model)),
        f"max_context_size = {CONTEXT_TOKENS}",
    ]
    return Preset(files={".kimi-code/config.toml": _lines(lines)})


def _hermes(spec: SessionSpec) -> Preset:
    model = {
        "default": model_name(spec.model),
        "provider": "custom",
        "base_url": f"{spec.gateway_url}/v1",
        "api_key": spec.token,
        "context_length": CONTEXT_TOKENS,
    }
    return Preset(
        # JSON is YAML too. Its SOUL.md stands at the head of the system prompt.
        files={".hermes/config.yaml": json.dumps({"model": model}), ".hermes/SOUL.md": spec.contract},
        env={"HERMES_HOME": _home(spec, ".hermes")},
    )


def _vibe(spec: SessionSpec) -> Preset:
    model = model_name(spec.model)
    lines = [
        'active_model = "gateway"',
        "enable_update_checks = false",
        "enable_telemetry = false",
        "",
        "[[providers]]",
        *_toml(name="gateway", api_base=f"{spec.gateway_url}/v1", api_key_env_var="OPENAI_API_KEY", backend="generic"),
        "",
        "[[models]]",
        *_toml(name=model, provider="gateway", alias="gateway"),
        "",
        "[tools.bash]",
        'permission = "ask"',
    ]
    return Preset(files={".vibe/config.toml": _lines(lines)}, env={"VIBE_HOME": _home(spec, ".vibe")})


_PRESETS: dict[str, Callable[[SessionSpec], Preset]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "goose": _goose,
    "hermes": _hermes,
    "kimi": _kimi,
    "opencode": _opencode,
    "qwen": _qwen,
    "vibe": _vibe,
}


def _toml(**values: str) -> list[str]:
    """A JSON string is one of TOML's too, once nothing in it is spelt as a pair of surrogates."""
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


def _lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
