# The package's public names; loaded on first use.
from .device.answer import Answer as Answer
from .device.answer import DecisionPoint as DecisionPoint
from .device.device import Device as Device
from .device.self_checks import self_test as self_test
from .errors import LinkError as LinkError
from .errors import SelfTestError as SelfTestError
from .errors import SensorError as SensorError
from .errors import WireError as WireError
from .link.link import InProcessLink as InProcessLink
from .link.link import Link as Link
from .link.mqtt_link import MqttLink as MqttLink
from .link.offload_rules import OffloadRules as OffloadRules
from .link.wire import Request as Request
from .link.wire import Response as Response
from .sensors.sensors import Sensors as Sensors
