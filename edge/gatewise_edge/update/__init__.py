"""Over-the-air updates: a device adopts another bundle while it continues to answer.

``gatewise edge --store --trust --update-host`` does the following; a program can do the same::

    store = Store("/var/lib/gatewise")
    path = next(iter(store.start()), "/etc/gatewise/bundle")     # the active release, or the bundle
                                                                 # that the device was set up with
    bundle = Bundle.open(path, for_device=True)
    link = MqttLink("mqtts://broker", device="pi-1")
    settings = UpdateSettings(urls=["https://models.example.org/fleet"], trust="root.json",
                              first_bundle="/etc/gatewise/bundle", device="pi-1")
    updater = Updater(store, settings, link=link)
    with Device(bundle, link=link, observe=updater.observe) as device, updater:
        updater.start(device)
        ...

Importing this package loads nothing but the standard library.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
