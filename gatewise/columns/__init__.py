"""Raw columns of a table as features, with the same bits in training and on a device."""
