"""The command that runs a device, and its outputs, metrics and watchdog."""
