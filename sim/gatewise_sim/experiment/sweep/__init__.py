"""Several simulations that differ in some settings, each kept as soon as it is finished."""
