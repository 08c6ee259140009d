"""Commands ``cloud``, ``broker`` and ``repo``, and a worker's metrics."""
