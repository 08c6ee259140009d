"""Answer the hard instances: workers, their models and batches, and a broker to start with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_cloud.batcher import Batcher
    from gatewise_cloud.broker import (
        Broker,
        EmbeddedBroker,
        MosquittoBroker,
        find_mosquitto,
    )
    from gatewise_cloud.client import shared_subscriptions_work
    from gatewise_cloud.errors import BrokerError, ModelError, RefusedRows
    from gatewise_cloud.model import CloudModel
    from gatewise_cloud.worker import Worker

__all__ = [
    "Batcher",
    "Broker",
    "BrokerError",
    "CloudModel",
    "EmbeddedBroker",
    "ModelError",
    "MosquittoBroker",
    "RefusedRows",
    "Worker",
    "find_mosquitto",
    "shared_subscriptions_work",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Batcher": "batcher",
        "Broker": "broker",
        "BrokerError": "errors",
        "CloudModel": "model",
        "EmbeddedBroker": "broker",
        "ModelError": "errors",
        "MosquittoBroker": "broker",
        "RefusedRows": "errors",
        "Worker": "worker",
        "find_mosquitto": "broker",
        "shared_subscriptions_work": "client",
    },
)
