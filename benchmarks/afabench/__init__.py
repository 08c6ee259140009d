"""AFABench's pipeline with the project's methods beside its own; its code is run, not copied."""
