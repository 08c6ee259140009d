"""Start, secure and control brokers, enrol devices, and roll releases out."""
