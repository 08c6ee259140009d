"""Process of the embedded broker, started by ``python -m`` with the arguments HOST PORT.

It serves until it receives SIGTERM, or until the process that started it ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from gatewise_cloud.child_process import end_with_owner


async def _serve(host: str, port: int) -> None:
    from amqtt.broker import Broker

    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop_event.set)
    end_with_owner(lambda: loop.call_soon_threadsafe(stop_event.set))
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {}},
        }
    )
    await broker.start()
    try:
        await stop_event.wait()
    finally:
        await broker.shutdown()


def main() -> None:
    """Serve MQTT 3.1.1 on ``argv[1]:argv[2]``."""
    # amqtt logs every client that disconnects as an error
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))


if __name__ == "__main__":
    main()
