"""The wire protocol in one module: message types, encoding and topics, for the cloud to import."""

from gatewise_edge.checks import MAX_PAYLOAD as MAX_PAYLOAD
from gatewise_edge.checks import check_device as check_device
from gatewise_edge.link.encoding import decode_request as decode_request
from gatewise_edge.link.encoding import decode_response as decode_response
from gatewise_edge.link.encoding import encode_request as encode_request
from gatewise_edge.link.encoding import encode_response as encode_response
from gatewise_edge.link.messages import BAD_REQUEST as BAD_REQUEST
from gatewise_edge.link.messages import BUSY as BUSY
from gatewise_edge.link.messages import FAILED as FAILED
from gatewise_edge.link.messages import MAX_RESPONSE_FIELD_BYTES as MAX_RESPONSE_FIELD_BYTES
from gatewise_edge.link.messages import NO_MODEL as NO_MODEL
from gatewise_edge.link.messages import AuditMark as AuditMark
from gatewise_edge.link.messages import Request as Request
from gatewise_edge.link.messages import Response as Response
from gatewise_edge.link.messages import new_id as new_id
from gatewise_edge.link.topics import JSON_REQUEST_TOPICS as JSON_REQUEST_TOPICS
from gatewise_edge.link.topics import LABEL_TOPICS as LABEL_TOPICS
from gatewise_edge.link.topics import REQUEST_TOPICS as REQUEST_TOPICS
from gatewise_edge.link.topics import dead_letter_topic as dead_letter_topic
from gatewise_edge.link.topics import device_of as device_of
from gatewise_edge.link.topics import manifest_topic as manifest_topic
from gatewise_edge.link.topics import request_topic as request_topic
from gatewise_edge.link.topics import response_topic as response_topic
from gatewise_edge.link.topics import shared_subscription as shared_subscription
from gatewise_edge.link.topics import status_topic as status_topic
