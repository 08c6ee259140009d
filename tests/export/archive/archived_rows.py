"""Random archived instances for tests."""

import numpy as np

from gatewise_export.archive.shard import ArchivedRows, ShardFacts

FACTS = ShardFacts(
    model="tiny", version="1", classes=("a", "b"), inputs=("f0", "f1", "f2"), shape=(3,)
)


def make_archived_rows(n_rows, seed=0, *, audit_share=0.3, dtype=np.float32):
    """Make instances; a share `audit_share` are audits with a probability of 0.1."""
    rng = np.random.default_rng(seed)
    first_class_probability = rng.random(n_rows).astype(np.float32)
    is_audit = rng.random(n_rows) < audit_share
    return ArchivedRows(
        request_id=np.frombuffer(rng.bytes(16 * n_rows), np.uint8).reshape(-1, 16),
        request_row=(np.arange(n_rows) % 7).astype(np.uint16),
        device=np.array([f"pi-{i % 3}" for i in range(n_rows)]),
        time=1e9 + np.arange(n_rows, dtype=float),
        X=(10 * rng.normal(size=(n_rows, 3))).astype(dtype),
        cloud_label=(first_class_probability < 0.5).astype(np.int32),
        probabilities=np.column_stack([first_class_probability, 1 - first_class_probability]),
        device_label=np.where(is_audit, rng.integers(0, 2, n_rows), -1).astype(np.int32),
        confidence=np.where(is_audit, 0.75, np.nan).astype(np.float32),
        sent_probability=np.where(is_audit, 0.1, 1.0),
        stored_probability=np.ones(n_rows),
        late=np.zeros(n_rows, bool),
    )
