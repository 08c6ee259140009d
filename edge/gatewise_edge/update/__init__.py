"""Over-the-air update: a device takes another bundle while it goes on answering.

How a program wires it (``gatewise edge --public-key --store --update-host`` does this)::

    store = Store("/var/lib/gatewise", public_key="fleet.pub")
    path = store.start() or "/etc/gatewise/bundle"      # the version last taken, else the first
    bundle = Bundle.open(path, public_key="fleet.pub", for_device=True)
    link = MqttLink("mqtts://broker", device="pi-1")
    updater = Updater(link, store, model=bundle.manifest.name, public_key="fleet.pub",
                      hosts=["models.example.org"])     # watches the topic: before the link opens
    with Device(bundle, link=link, observe=updater.observe) as device, updater:
        updater.start(device)
        ...

Importing this package loads nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise_training._lazy import lazy_names

if TYPE_CHECKING:
    from gatewise_edge.update.announcement import Announcement
    from gatewise_edge.update.errors import UpdateError
    from gatewise_edge.update.publisher import publish
    from gatewise_edge.update.store import Store
    from gatewise_edge.update.updater import Updater

__all__ = ["Announcement", "Store", "UpdateError", "Updater", "publish"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Announcement": "announcement",
        "Store": "store",
        "UpdateError": "errors",
        "Updater": "updater",
        "publish": "publisher",
    },
)
