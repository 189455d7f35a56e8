"""The same stages as for the promises."""

from tests.promises.conftest import stage, wechat

__all__ = ["stage", "wechat"]
