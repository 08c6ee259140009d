"""AFABench's pipeline, run with this project's methods and its own; no code of it is copied."""
