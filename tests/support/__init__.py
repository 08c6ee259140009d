"""Helpers that tests of several packages share: brokers, processes, clients, bundles."""
