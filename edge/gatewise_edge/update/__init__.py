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

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
