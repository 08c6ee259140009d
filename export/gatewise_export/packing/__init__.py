"""Write a fitted system as a bundle: convert models, probe them and verify decisions."""
