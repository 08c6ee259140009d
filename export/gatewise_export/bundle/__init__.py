"""The bundle format: manifest, files and signature. Readers treat every bundle as untrusted."""
