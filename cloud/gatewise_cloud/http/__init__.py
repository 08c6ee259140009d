"""HTTP service for a bundle's cascade, which runs the stages and offloads the hard rows."""
