"""Cost-efficient gradient boosting (CEGB, NIPS 2017) on LightGBM."""
