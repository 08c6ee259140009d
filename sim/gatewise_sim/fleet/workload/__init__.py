"""When instances come, at which device, and which rows they are."""
