"""Energy of devices: radios, features, stages and batteries."""
