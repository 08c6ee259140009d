"""Problems and signals that benchmarks are run on."""
