"""The walker in C, where the device has a compiler: same trees, same purchases, same bits.

The C code never calls Python. It walks until a node tests a feature that is not known yet, says
which, and goes on from there when it is given the value. So an error of a sensor ends a walk as
any error of Python's does, several threads may walk at a time, and a process that may not make
memory executable (``MemoryDenyWriteExecute=`` in systemd) can use it, too.

The source below is compiled once, into the user's cache folder, and loaded with cffi. Without a
compiler, without cffi or without a safe folder there is no native walker, and
:class:`gatewise_edge.stages.walker.Walker` does the same, slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gatewise_export.bundle.flat_trees import FlatTrees
from gatewise_export.native_library import library

__all__ = ["DECLARATIONS", "SOURCE", "NativeWalker", "load"]

Matrix = NDArray[np.float32]

_NAN_LEFT: Final = 1 << 30
"""Set in a node's column where NaN goes left."""

DECLARATIONS: Final = """
typedef struct { int32_t column; float threshold; int32_t left, right; } gw_node;
typedef struct {
    const gw_node *nodes;
    const float *value;
    const int32_t *roots;
    const int32_t *output;
    const float *base;
    int32_t n_trees, n_outputs, n_features, width;
} gw_trees;
typedef struct { int32_t tree, node, asked; float numbers[]; } gw_walk;
int32_t gw_resume(const gw_trees *trees, gw_walk *walk, float value);
void gw_run(const gw_trees *trees, const float *x, int64_t rows, float *out, uint8_t *bought);
"""

SOURCE: Final = (
    """\
#include <float.h>
#include <stdint.h>

#if FLT_EVAL_METHOD != 0
#error "sums must be rounded to float: on i386 compile with -msse2 -mfpmath=sse"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math does not keep the order of sums, nor NaN"
#endif
"""
    + DECLARATIONS
    + """
#define NAN_LEFT (1 << 30)

static int32_t step(const gw_node *n, float v)
{
    if (v <= n->threshold)
        return n->left;
    return v != v && (n->column & NAN_LEFT) ? n->left : n->right;
}

static void add(const gw_trees *t, int32_t tree, int32_t leaf, float *out)
{
    const float *value = t->value + (int64_t)leaf * t->width;
    if (t->output[tree] >= 0) {
        out[t->output[tree]] += value[0];
        return;
    }
    for (int32_t m = 0; m < t->n_outputs; m++)
        out[m] += value[m];
}

static void finish(const gw_trees *t, float *out)
{
    for (int32_t m = 0; m < t->n_outputs; m++)
        out[m] += t->base[m];
}

/* A walk begins as zeros; numbers: the sums, the values, whether each is known. The column whose
   value is wanted next, or -1 when the sums are complete. */
int32_t gw_resume(const gw_trees *t, gw_walk *w, float value)
{
    float *out = w->numbers, *values = out + t->n_outputs, *known = values + t->n_features;
    int32_t node = w->node;
    if (w->asked) {
        values[w->asked - 1] = value;
        known[w->asked - 1] = 1.0f;
    }
    for (int32_t tree = w->tree; tree < t->n_trees; tree++) {
        const gw_node *n;
        if (tree != w->tree)
            node = t->roots[tree];
        for (n = t->nodes + node; n->column >= 0; n = t->nodes + node) {
            int32_t column = n->column & ~NAN_LEFT;
            if (known[column] == 0.0f) {
                w->tree = tree;
                w->node = node;
                w->asked = column + 1;
                return column;
            }
            node = step(n, values[column]);
        }
        add(t, tree, node, out);
    }
    finish(t, out);
    return -1;
}

void gw_run(const gw_trees *t, const float *x, int64_t rows, float *out, uint8_t *bought)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int32_t tree = 0; tree < t->n_trees; tree++) {
            int32_t node = t->roots[tree];
            for (const gw_node *n = t->nodes + node; n->column >= 0; n = t->nodes + node) {
                int32_t column = n->column & ~NAN_LEFT;
                bought[column] = 1;
                node = step(n, x[column]);
            }
            add(t, tree, node, out);
        }
        finish(t, out);
        x += t->n_features;
        out += t->n_outputs;
        bought += t->n_features;
    }
}
"""
)


def load(trees: FlatTrees) -> NativeWalker | None:
    """Make a native walker, compiling it if this user never has.

    Parameters
    ----------
    trees : FlatTrees

    Returns
    -------
    NativeWalker or None
        None where there is no compiler, no cffi, or no folder of the user's own for the library.
    """
    found = library("walker", SOURCE, DECLARATIONS)
    return None if found is None else NativeWalker(trees, *found)


class NativeWalker:
    """The trees of one stage, walked in C; several threads may walk at a time.

    Made by :func:`load`.

    Attributes
    ----------
    trees : FlatTrees
    """

    def __init__(self, trees: FlatTrees, ffi: Any, lib: Any) -> None:
        self.trees = trees
        self._resume, self._run = lib.gw_resume, lib.gw_run
        kept = [
            _nodes(trees),
            *(
                np.require(array, kind, ["C", "A"])
                for array, kind in (
                    (trees.value, np.float32),
                    (trees.roots, np.int32),
                    (trees.output, np.int32),
                    (trees.base, np.float32),
                )
            ),
        ]
        kinds = ("gw_node[]", "float[]", "int32_t[]", "int32_t[]", "float[]")
        # cdata that points into the arrays keeps them alive; the struct itself does not
        self._pointers = [ffi.from_buffer(k, a) for k, a in zip(kinds, kept, strict=True)]
        sizes = (len(trees.roots), trees.n_outputs, trees.n_features, trees.value.shape[1])
        self._trees = ffi.new("gw_trees *", [*self._pointers, *sizes])
        self._new, self._buffer, self._from_buffer = ffi.new, ffi.buffer, ffi.from_buffer
        self._walk = ffi.typeof("gw_walk *")
        self._start = (0, 0, 0, trees.n_outputs + 2 * trees.n_features)
        self._out = 4 * trees.n_outputs

    def walk(self, ask: Callable[[int], float]) -> Matrix:
        """Walk tree after tree for one instance; see :meth:`Walker.walk`.

        Parameters
        ----------
        ask : callable
            Gives the value of an input, a float32 number or NaN, by its column; called once for
            each that a node tests, in the order of the first tests. What it raises ends the walk.

        Returns
        -------
        ndarray of float32, shape (1, n_outputs)
            Bit for bit ``TreeEnsemble.margins`` of the row.
        """
        resume, trees = self._resume, self._trees
        walk = self._new(self._walk, self._start)
        column = resume(trees, walk, 0.0)
        while column >= 0:
            column = resume(trees, walk, ask(column))
        out = np.frombuffer(self._buffer(walk.numbers, self._out), np.float32)
        return out.reshape(1, -1).copy()

    def run(self, x: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
        """Margins of many rows and the columns that each buys; see :meth:`FlatTrees.run`.

        Parameters
        ----------
        x : ndarray of float32, shape (n, n_features)

        Returns
        -------
        margins : ndarray of float32, shape (n, n_outputs)
        bought : ndarray of bool, shape (n, n_features)
        """
        x = np.require(x, np.float32, ["C", "A"])
        out = np.zeros((len(x), self.trees.n_outputs), np.float32)
        bought = np.zeros((len(x), self.trees.n_features), np.uint8)
        if x.shape != bought.shape:
            raise ValueError(f"rows of {self.trees.n_features} columns, not shape {x.shape}")
        cast = self._from_buffer
        self._run(
            self._trees, cast("float[]", x), len(x),
            cast("float[]", out), cast("uint8_t[]", bought),
        )  # fmt: skip
        return out, bought.view(np.bool_)


def _nodes(trees: FlatTrees) -> NDArray[Any]:
    """What a step reads, side by side: 16 bytes a node."""
    kind = np.dtype(
        [("column", np.int32), ("threshold", np.float32), ("left", np.int32), ("right", np.int32)]
    )
    nodes = np.zeros(len(trees.feature), kind)
    flag = np.where(trees.nan_left & (trees.feature >= 0), _NAN_LEFT, 0).astype(np.int32)
    nodes["column"] = np.where(trees.feature >= 0, trees.feature | flag, -1)
    for name in ("threshold", "left", "right"):
        nodes[name] = getattr(trees, name)
    return nodes
