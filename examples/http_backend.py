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
    # Missing values (NaN) are no JSON: a model that takes them needs a form of its own, as null.
    body = json.dumps({"instances": X.tolist()}, allow_nan=False).encode()
    request = Request(URL, body, {"Content-Type": "application/json"})
    # No answer in 5 s is an OSError: the worker says `busy`, and the device answers by itself.
    with urlopen(request, timeout=5) as response:
        return json.load(response)["predictions"]
