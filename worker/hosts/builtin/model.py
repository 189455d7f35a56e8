"""Which model, and the way to it: always the gateway, by plain TCP on loopback, with the worker's own token."""

from typing import Any

import httpx2
from pydantic_ai.models import Model

from protocol.errors import FailureKind
from worker.hosts.base import HostError, SessionSpec

CONNECT_S = 5.0
ANSWER_S = 600.0
NOT_SET = "no model is set: [agent] model, and the key's variable in api_key_env"


def client() -> httpx2.AsyncClient:
    """Proxy variables are for tools: the gateway is on this machine."""
    return httpx2.AsyncClient(timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S), trust_env=False)


def model_for(spec: SessionSpec, http: httpx2.AsyncClient) -> Model:
    """By the prefix of [agent] model. raises HostError: none is set, or its library is not installed"""
    dialect, colon, name = spec.model.partition(":")
    if not spec.model or not spec.gateway_url or not name:
        raise HostError(FailureKind.NOT_CONFIGURED, NOT_SET)
    given: dict[str, Any] = {"http_client": http, "api_key": spec.token}
    try:
        match dialect:
            case "openai" | "openai-compatible":
                from pydantic_ai.models.openai import OpenAIChatModel
                from pydantic_ai.providers.openai import OpenAIProvider

                return OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{spec.gateway_url}/v1", **given))
            case "anthropic":
                from pydantic_ai.models.anthropic import AnthropicModel
                from pydantic_ai.providers.anthropic import AnthropicProvider

                return AnthropicModel(name, provider=AnthropicProvider(base_url=spec.gateway_url, **given))
            case "google":
                from pydantic_ai.models.google import GoogleModel
                from pydantic_ai.providers.google import GoogleProvider

                return GoogleModel(name, provider=GoogleProvider(base_url=spec.gateway_url, **given))
    except ImportError as error:
        raise HostError(
            FailureKind.NOT_CONFIGURED,
            f"{dialect} models need a package that is not installed: pydantic-ai-slim[{dialect}]",
        ) from error
    raise HostError(FailureKind.NOT_CONFIGURED, f"{dialect}: not a kind of model; openai, anthropic, google are")
