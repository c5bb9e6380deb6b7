"""The socket that the server listens on."""

from __future__ import annotations

import asyncio
import socket

from folovllm.serving.openai.launch import listen


def test_what_is_written_to_a_client_does_not_wait_for_more() -> None:
    """TCP_NODELAY on an accepted connection: an event goes out before what was sent earlier is acknowledged."""

    async def option() -> int:
        found = asyncio.get_running_loop().create_future()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(accepted, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
                result: int = await found
                writer.close()
        return result

    assert asyncio.run(option()) != 0
