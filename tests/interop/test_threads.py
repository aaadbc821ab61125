"""Genuine clients of every protocol answer a message at once, by the id that Arbor has for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.arbor import Arbor, arbor, community, require_arbor, run
from tests.interop.streamr import clients
from tests.npm import WAIT, node_client, require_clients
from tests.server import Server

CHANNEL = "answers"
Say = Callable[[dict[str, str]], Awaitable[object]]


def test_an_immediate_answer_keeps_its_thread(tmp_path: Path) -> None:
    program = require_arbor()
    require_clients()

    async def scenario(server: Server) -> None:
        lobby = await community(server, CHANNEL)
        async with (
            arbor(program, server.sprout) as forest,
            node_client("koshare.cjs", f"ws://{server.http}/relay") as relay,
            clients() as pool,
            httpx.AsyncClient(base_url=f"http://{server.http}/v1/channels/{CHANNEL}", timeout=WAIT) as rest,
        ):
            streamr = await pool.open(server, "5.1.0", 0xA115)
            await forest.do("bootstrap")
            await forest.do(f"subscribe {lobby}")

            async def broadcast(content: dict[str, str]) -> None:
                relay.do("broadcast", topic=CHANNEL, body=content)
                await relay.next_event("sent")

            async def reply(content: dict[str, str]) -> object:
                return await forest.do(f"say {content.get('inReplyTo', lobby)} {content['content']}")

            said: dict[str, Say] = {
                "topic relay": broadcast,
                "Arbor": reply,
                "Streamr": lambda content: streamr.publish(CHANNEL, content),
                "REST": lambda content: rest.post("/messages", json=content),
            }
            for asker in said:
                await ask_and_answer(asker, said, forest, rest)

    with Server(tmp_path) as server:
        run(lambda: scenario(server))
        assert server.stop() == 0
        assert "Traceback" not in server.log


async def ask_and_answer(asker: str, said: dict[str, Say], forest: Arbor, rest: httpx.AsyncClient) -> None:
    """A client asks something, and all of them answer the question at once."""
    question = {"content": f"a question by {asker}"}
    answer = {"content": f"an answer to {asker}"}
    told = await said[asker](question)
    if asker == "Arbor":
        assert isinstance(told, dict)
        id = told["id"]
    else:
        id = (await forest.next("announced", type="reply", content=question["content"]))["id"]
    await asyncio.gather(*(each(answer | {"inReplyTo": id}) for each in said.values()))
    for _ in range(3):
        heard = await forest.next("announced", type="reply", parent=id)
        assert answer["content"] in heard["content"]
    (asked,) = await kept(rest, question["content"], 1)
    answers = await kept(rest, answer["content"], len(said))
    assert [message["inReplyTo"] for message in answers] == [asked["id"]] * len(said), asker


async def kept(rest: httpx.AsyncClient, text: str, count: int) -> list[Any]:
    """The *count* messages of that text, once they are on disk."""
    while True:
        messages = (await rest.get("/messages?limit=256")).json()["messages"]
        found = [message for message in messages if message["content"]["content"] == text]
        if len(found) == count:
            return found
        await asyncio.sleep(0.02)
