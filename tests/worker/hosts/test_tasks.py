"""The tasks of an agent session end with it, and with nobody's error."""

import asyncio

from tests.fakes.hosts import run
from worker.hosts.tasks import SessionTasks


def test_all_end_with_the_session_but_the_one_that_ends_it() -> None:
    async def scenario() -> None:
        tasks, ended = SessionTasks(), []

        async def closing() -> None:
            await tasks.end()
            ended.append("closing")

        hanging = tasks.start(asyncio.Event().wait(), "hangs")  # type: ignore[arg-type]
        failing = tasks.start(fails(), "fails")
        await tasks.start(closing(), "closes")

        assert hanging.cancelled() and failing.done() and ended == ["closing"]

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError

    run(scenario())


def test_what_ends_within_its_grace_is_not_cancelled() -> None:
    async def scenario() -> None:
        tasks, go = SessionTasks(), asyncio.Event()

        async def waits() -> None:
            await go.wait()

        last_words = tasks.start(waits(), "last words")
        asyncio.get_running_loop().call_soon(go.set)
        await tasks.end(grace_s=30)

        assert last_words.done() and not last_words.cancelled()

    run(scenario())
