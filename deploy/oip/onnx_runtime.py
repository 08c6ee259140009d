"""Runtime with which MLServer serves a bundle's ``cloud.onnx`` over the Open Inference Protocol.

MLServer has no runtime for ONNX. In the same folder, ``model-settings.json`` names the model and
its file, and ``settings.json`` has the server's settings. To try it::

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

#: Type of the protocol by the type of onnxruntime.
DATATYPES = {"tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(double)": "FP64"}


class OnnxRuntime(MLModel):
    """ONNX graph with one float32 input of shape (n, k)."""

    async def load(self) -> bool:
        """Open the graph, and describe its inputs and outputs."""
        path = await get_model_uri(self._settings)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [_describe_tensor(spec) for spec in self._session.get_inputs()]
        self.outputs = [_describe_tensor(spec) for spec in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run the graph on all instances of a request."""
        (request_input,) = payload.inputs
        rows = NumpyCodec.decode_input(request_input).astype("float32", copy=False)
        outputs = self._session.run(None, {self._session.get_inputs()[0].name: rows})
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            outputs=[
                NumpyCodec.encode_output(spec.name, array)
                for spec, array in zip(self._session.get_outputs(), outputs, strict=True)
            ],
        )


def _describe_tensor(spec) -> MetadataTensor:
    # onnxruntime names free dimensions, which are -1 in the protocol
    shape = [length if isinstance(length, int) else -1 for length in spec.shape]
    return MetadataTensor(name=spec.name, datatype=DATATYPES[spec.type], shape=shape)
