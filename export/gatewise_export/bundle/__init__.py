"""The bundle format: manifest, files, signature; read without trust."""
