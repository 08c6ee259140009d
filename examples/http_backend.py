"""A high-cost model behind an HTTP service, here TensorFlow Serving.

Use the same function for training and for the worker:

    gw.StagedCascade("python:http_backend:probabilities")
    gatewise cloud bundle --backend python:http_backend:probabilities
"""

import json
import os
from http.client import HTTPException
from urllib.request import Request, urlopen

URL = os.environ.get("MODEL_URL", "http://localhost:8501/v1/models/iris:predict")


def probabilities(X):
    """Ask the service for the class probabilities of rows, float32 (n, k)."""
    # JSON has no NaN. If the model accepts missing values, send them in another form, such as null.
    body = json.dumps({"instances": X.tolist()}, allow_nan=False).encode()
    request = Request(URL, body, {"Content-Type": "application/json"})
    # An OSError, such as that of a service that is silent for 5 s, makes the worker respond `busy`.
    try:
        with urlopen(request, timeout=5) as response:
            return json.load(response)["predictions"]
    except HTTPException as error:
        raise OSError(f"the service gave no whole response: {error!r}") from error
