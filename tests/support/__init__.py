"""Helpers for the tests of several packages: brokers, processes, clients and bundles."""
