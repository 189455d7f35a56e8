"""Async tests of the channels run on asyncio, by the plugin that comes with httpx's anyio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
