"""A device on a gateway that answers the rows of the sensors at its site.

    python gateway.py BUNDLE mqtt://localhost mqtts://cloud.example

A sensor publishes a row, a JSON list, on ``site/NAME/row`` of the site's broker. The gateway runs
the bundle's stages, offloads hard rows to the cloud, and publishes ``site/NAME/answer``.
"""

import json
import sys
from urllib.parse import urlsplit

import paho.mqtt.client as paho

import gatewise as gw


def main(bundle, site_url, cloud_url):
    """Answer the rows on the site's broker until the process ends."""
    link = gw.MqttLink(cloud_url, device="gateway-1")
    with gw.Device(bundle, link=link, deadline_ms=2000) as device:

        def answer_row(client, _userdata, message):
            try:
                answer = device.answer(json.loads(message.payload))
                reply = {"label": answer.label, "route": answer.route, "cost": answer.cost}
            # invalid JSON, not a row of this bundle, or a value that the bundle refuses
            except (ValueError, RecursionError, gw.SensorError) as error:
                reply = {"error": str(error)}
            client.publish(message.topic.removesuffix("row") + "answer", json.dumps(reply), qos=1)

        client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        client.on_connect = lambda client, *_: client.subscribe("site/+/row", qos=1)
        client.on_message = answer_row
        client.connect(urlsplit(site_url).hostname, urlsplit(site_url).port or 1883)
        client.loop_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
