"""Name of the light half of ``gatewise_export`` in the facade: what a device needs."""

from gatewise_export import Bundle as Bundle
