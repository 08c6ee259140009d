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
    from gatewise_cloud.broker_init import BrokerFolder, init_broker
    from gatewise_cloud.client import shared_subscriptions_work
    from gatewise_cloud.endpoints import Endpoints
    from gatewise_cloud.errors import BackendBusy, BrokerError, ModelError, RefusedRows
    from gatewise_cloud.gateway import GatewayModel
    from gatewise_cloud.model import CloudModel
    from gatewise_cloud.oip import OipBackend
    from gatewise_cloud.processes import Supervisor
    from gatewise_cloud.worker import Worker

__all__ = [
    "BackendBusy",
    "Batcher",
    "Broker",
    "BrokerError",
    "BrokerFolder",
    "CloudModel",
    "EmbeddedBroker",
    "Endpoints",
    "GatewayModel",
    "ModelError",
    "MosquittoBroker",
    "OipBackend",
    "RefusedRows",
    "Supervisor",
    "Worker",
    "find_mosquitto",
    "init_broker",
    "shared_subscriptions_work",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BackendBusy": "errors",
        "Batcher": "batcher",
        "Broker": "broker",
        "BrokerError": "errors",
        "BrokerFolder": "broker_init",
        "CloudModel": "model",
        "EmbeddedBroker": "broker",
        "Endpoints": "endpoints",
        "GatewayModel": "gateway",
        "ModelError": "errors",
        "MosquittoBroker": "broker",
        "OipBackend": "oip",
        "RefusedRows": "errors",
        "Supervisor": "processes",
        "Worker": "worker",
        "find_mosquitto": "broker",
        "init_broker": "broker_init",
        "shared_subscriptions_work": "client",
    },
)
