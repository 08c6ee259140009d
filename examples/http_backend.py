"""A high-cost model behind any HTTP service, here in the form of TensorFlow Serving.

Train with it, and name the same function to the worker:

    gw.StagedCascade("python:http_backend:probabilities")
    gatewise cloud bundle --backend python:http_backend:probabilities
"""

import json
import os
from urllib.request import Request, urlopen

URL = os.environ.get("MODEL_URL", "http://localhost:8501/v1/models/iris:predict")


def probabilities(X):
    """Ask the service for the class probabilities of rows, float32 (n, k)."""
    # JSON has no NaN: send missing values in another form, such as null, if the model takes them.
    body = json.dumps({"instances": X.tolist()}, allow_nan=False).encode()
    request = Request(URL, body, {"Content-Type": "application/json"})
    # Without an answer in 5 s, an OSError: the worker responds `busy`, and the device answers.
    with urlopen(request, timeout=5) as response:
        return json.load(response)["predictions"]
