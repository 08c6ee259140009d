"""A bundle's cascade as a service over HTTP: stages here, hard rows to a worker or a server."""
