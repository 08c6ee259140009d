"""Public name from the light half of ``gatewise_export``, which devices need."""

from gatewise_export import Bundle as Bundle
