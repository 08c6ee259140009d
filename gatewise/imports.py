"""Imports of onnxruntime, and of Python objects by their import path."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any, Final

from gatewise.errors import InputError, one_line


def load_onnxruntime() -> ModuleType:
    """Import onnxruntime without telemetry, which its wheels enable from version 1.31 on."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # has an effect only before the import
    import onnxruntime

    return onnxruntime  # type: ignore[no-any-return]


#: Execution provider that every build of onnxruntime has.
CPU: Final = "cpu"

#: Largest change of a sample row's probability that another execution provider may cause.
PROVIDER_TOLERANCE: Final = 1e-3

_PROVIDER_SUFFIX: Final = "ExecutionProvider"


def check_provider(name: str) -> None:
    """Raise InputError unless onnxruntime has the execution provider `name`, such as ``cuda``."""
    if name != CPU:
        _find_provider_class(name)


def _find_provider_class(name: str) -> str:
    """Get onnxruntime's class name for an execution provider."""
    try:
        classes = load_onnxruntime().get_available_providers()
    except ImportError:
        raise InputError(f"provider {name!r} needs onnxruntime, which is not installed") from None
    class_by_name = {
        class_name.removesuffix(_PROVIDER_SUFFIX).lower(): class_name for class_name in classes
    }
    if name not in class_by_name:
        raise InputError(
            f"provider {name!r} is not in the onnxruntime installed here, which has "
            f"{', '.join(class_by_name)}; install a build of onnxruntime that has it, such as "
            "onnxruntime-gpu for cuda and tensorrt, or onnxruntime-openvino"
        )
    return str(class_by_name[name])


def open_session(graph: bytes, *, n_threads: int = 1, provider: str = CPU) -> Any:
    """Open an onnxruntime session with the settings that devices use.

    One thread is fastest for stages. The CPU runs the operators that the execution `provider`
    lacks. Raises InputError if the provider is missing or does not start.
    """
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    # spinning threads would block the thread that reads messages
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4  # log nothing, because exceptions contain the same messages
    cpu_class = f"CPU{_PROVIDER_SUFFIX}"
    if provider == CPU:
        return onnxruntime.InferenceSession(graph, options, providers=[cpu_class])
    provider_class = _find_provider_class(provider)
    try:
        session = onnxruntime.InferenceSession(
            graph, options, providers=[provider_class, cpu_class]
        )
    except Exception as error:  # onnxruntime's errors have no common base class
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"provider {provider!r} does not run this graph: {reason}") from error
    # onnxruntime silently skips a provider whose libraries or device are missing
    if provider_class not in session.get_providers():
        raise InputError(
            f"provider {provider!r} does not start: a driver, library or device is missing here"
        )
    return session


def import_object(option: str, path: str) -> Any:
    """Import the object ``module:attribute``; the current folder is searched as well.

    Raises InputError, which names the `option`, if the object does not exist.

    >>> import_object("--policy", "math:floor")(2.5)
    2
    """
    module, _, attribute = path.partition(":")
    if not all(name.isidentifier() for name in (*module.split("."), *attribute.split("."))):
        raise InputError(f"{option}: give module:name, such as package.module:function")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        imported_object = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything when it is imported
        if isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]:
            raise InputError(
                f"{option}: there is no module {error.name!r} here: run in its folder"
            ) from None
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{option}: importing {module} failed: {reason}") from error
    for name in attribute.split("."):
        if not hasattr(imported_object, name):
            raise InputError(f"{option}: {module} has no {attribute!r}")
        imported_object = getattr(imported_object, name)
    return imported_object


def object_path(target: Any) -> str:
    """Return the path ``module:name`` of a function, or "" if other processes cannot import it."""
    module = getattr(target, "__module__", "")
    name = getattr(target, "__qualname__", "")
    imported_object: Any = sys.modules.get(module) if module != "__main__" else None
    for attribute in name.split("."):
        imported_object = getattr(imported_object, attribute, None)
    return f"{module}:{name}" if imported_object is target else ""
