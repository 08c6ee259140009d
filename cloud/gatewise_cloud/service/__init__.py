"""Commands ``cloud``, ``broker`` and ``repo``, and the metrics of a worker."""
