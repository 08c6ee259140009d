"""Random archived instances for tests."""

import numpy as np

from gatewise_export.archive.shard import ArchivedRows, ShardFacts

FACTS = ShardFacts(
    model="tiny", version="1", classes=("a", "b"), inputs=("f0", "f1", "f2"), shape=(3,)
)


def archived(n, seed=0, *, audits=0.3, dtype=np.float32):
    """Make n instances; a share `audits` of them are audits with a probability of 0.1."""
    rng = np.random.default_rng(seed)
    p = rng.random(n).astype(np.float32)
    is_audit = rng.random(n) < audits
    return ArchivedRows(
        ids=np.array([f"{rng.bytes(16).hex()}-{i % 7}" for i in range(n)]),
        device=np.array([f"pi-{i % 3}" for i in range(n)]),
        time=1e9 + np.arange(n, dtype=float),
        X=(10 * rng.normal(size=(n, 3))).astype(dtype),
        cloud_label=(p < 0.5).astype(np.int32),
        probabilities=np.column_stack([p, 1 - p]),
        device_label=np.where(is_audit, rng.integers(0, 2, n), -1).astype(np.int32),
        confidence=np.where(is_audit, 0.75, np.nan).astype(np.float32),
        sent_chance=np.where(is_audit, 0.1, 1.0),
        stored_chance=np.ones(n),
        late=np.zeros(n, bool),
    )
