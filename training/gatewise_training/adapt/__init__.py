"""Adapt: a gate and a low-cost model learned together (Nan & Saligrama, NIPS 2017)."""
