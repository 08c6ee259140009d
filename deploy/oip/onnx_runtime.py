"""A runtime for MLServer that serves a bundle's ``cloud.onnx`` over the Open Inference Protocol.

MLServer brings no runtime for ONNX; this is all that it takes. Beside it lie
``model-settings.json``, which names the model and the file, and ``settings.json``. To try it::

    python -m venv mlserver && mlserver/bin/pip install mlserver onnxruntime
    cp BUNDLE/cloud.onnx deploy/oip/
    mlserver/bin/mlserver start deploy/oip
    gatewise cloud BUNDLE --backend http://127.0.0.1:8080/v2/models/cloud --parallel 4
"""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor
from mlserver.utils import get_model_uri

DATATYPES = {"tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(double)": "FP64"}


class OnnxRuntime(MLModel):
    """One ONNX graph with one float32 input of shape (n, k)."""

    async def load(self) -> bool:
        """Open the graph, and say what it takes and gives."""
        path = await get_model_uri(self._settings)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [_tensor(one) for one in self._session.get_inputs()]
        self.outputs = [_tensor(one) for one in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run the graph on all instances of a request."""
        (given,) = payload.inputs
        rows = NumpyCodec.decode_input(given).astype("float32", copy=False)
        outputs = self._session.run(None, {self._session.get_inputs()[0].name: rows})
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            outputs=[
                NumpyCodec.encode_output(spec.name, array)
                for spec, array in zip(self._session.get_outputs(), outputs, strict=True)
            ],
        )


def _tensor(spec) -> MetadataTensor:
    # A dimension of the protocol is a number; -1 is any.
    shape = [n if isinstance(n, int) else -1 for n in spec.shape]
    return MetadataTensor(name=spec.name, datatype=DATATYPES[spec.type], shape=shape)
