"""Models that users give, as high-cost models and as stages."""
