"""The process of the embedded broker: ``python -m gatewise_cloud.broker._amqtt HOST PORT``.

It serves until SIGTERM, or until its standard input ends, so that it never outlives the
process that started it, not even one that was killed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

__all__ = ["main"]


async def _serve(host: str, port: int) -> None:
    from amqtt.broker import Broker

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), stop.set)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {}},
        }
    )
    await broker.start()
    try:
        await stop.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
        await broker.shutdown()


def main() -> None:
    """Serve MQTT 3.1.1 on ``argv[1]:argv[2]``."""
    # amqtt reports every client that goes away as an error.
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))


if __name__ == "__main__":
    main()
