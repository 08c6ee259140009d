"""Sub-commands of ``gatewise`` that train, pack, sign and check bundles."""
