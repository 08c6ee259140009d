"""The command ``gatewise edge``, with its outputs, metrics and watchdog."""
