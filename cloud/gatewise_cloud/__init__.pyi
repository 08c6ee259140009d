# Public names of the package. Each one is imported on first use.
from .broker.broker import Broker as Broker
from .broker.broker import EmbeddedBroker as EmbeddedBroker
from .broker.broker import MosquittoBroker as MosquittoBroker
from .broker.broker import find_mosquitto as find_mosquitto
from .broker.broker_init import BrokerFolder as BrokerFolder
from .broker.broker_init import init_broker as init_broker
from .broker.mqtt_client import shared_subscriptions_work as shared_subscriptions_work
from .errors import BackendBusy as BackendBusy
from .errors import BrokerError as BrokerError
from .errors import ModelError as ModelError
from .errors import RefusedRows as RefusedRows
from .models.cloud_model import CloudModel as CloudModel
from .models.oip import OipBackend as OipBackend
from .worker.batcher import Batcher as Batcher
from .worker.worker import Worker as Worker
