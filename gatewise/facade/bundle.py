"""Name of the light half of ``gatewise_export``, which devices need, in the facade."""

from gatewise_export import Bundle as Bundle
