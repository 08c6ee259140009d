"""Lock for numba's compilation, so that only one test process compiles each kernel."""

from __future__ import annotations

import fcntl
import functools
from pathlib import Path
from typing import Any

from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def lock_compilation() -> None:
    """Lock each kernel while it is compiled; other processes then load it from numba's cache."""
    compile_kernel = Dispatcher.compile

    @functools.wraps(compile_kernel)
    def compile_locked(self: Any, signature: Any) -> Any:
        folder = self._cache.cache_path
        if folder is None or tuple(signature) in self.overloads:
            return compile_kernel(self, signature)
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock_file = Path(folder) / f"{self.py_func.__module__}.{self.py_func.__qualname__}.lock"
        # Acquire numba's lock first, as other threads do: the other order could deadlock.
        with global_compiler_lock, lock_file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_kernel(self, signature)

    Dispatcher.compile = compile_locked
