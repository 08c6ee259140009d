"""Recovery from kill -9 during updates and publishing, damaged files and full disks.

    python -m benchmarks.bench_kills [--quick] [--again]

A device must start, answer and reach the published release. It must never run a withdrawn release
again after it has left it. A repository must open, and devices must be able to update from it. Half
of the kills happen before a random change to the disk, the others at a random time. The results of
each group of kills are cached in .bench-cache/kills, so that an interrupted run continues;
``--again`` removes them first. The results are kills.json and kills.md in benchmarks/results;
``--quick`` writes them into .bench-cache/quick.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cache import CACHE, write_whole
from benchmarks.edge.lives import Life, live, publish
from gatewise.console import note
from gatewise_export.repository.repository import Repository

#: Total numbers of kills, and kills per cached group.
DEVICE_KILLS = 700
PUBLISHER_KILLS = 300
GROUP = 50
#: After this many kills, one process is not killed and must reach the published release.
CHECK_INTERVAL = 10
VERSIONS = ("1", "2", "3", "4", "5", "6")
FIRST = "first"

_PROCESS_CONTEXT = multiprocessing.get_context("forkserver")


# -- device and repository ---------------------------------------------------------------------


class Fleet:
    """Repository of releases, store of a device, and withdrawn versions that it has left."""

    def __init__(self, folder: Path, bundles: Path, rng: random.Random) -> None:
        self.rng = rng
        self.repository = folder / "repository"
        self.bundles = bundles
        opened = Repository.init(self.repository)
        for version in VERSIONS[:3]:
            opened.add(bundles / version)
        opened.publish("iris/1")
        trust = folder / "root.json"
        shutil.copy(opened.root_file, trust)
        self.device = Life(
            folder / "store", repository=self.repository, trust=trust, first=bundles / FIRST
        )
        self.left_versions: set[str] = set()
        self.faults: list[str] = []

    def target(self) -> str:
        """Version that the device must reach."""
        offer = Repository(self.repository).preferred_release("iris")
        return FIRST if offer is None else offer.version

    def change(self, life: Life | None = None) -> None:
        """Change the repository at random; with a `life`, a process does it and is killed."""
        opened = Repository(self.repository)
        offers = opened.offers()
        wanted = opened.preferred_release("iris")
        actions = [("publish", offer.version) for offer in offers if offer != wanted]
        actions += [] if wanted is None else [("rollback", wanted.version)]
        if life is not None:
            absent = sorted(set(VERSIONS) - {offer.version for offer in offers})
            actions += [("add", str(self.bundles / version)) for version in absent[:1]]
            actions += [("rotate", self.rng.choice(("targets", "snapshot", "timestamp", "root")))]
            actions += [("refresh", "")]
        action, argument = self.rng.choice(actions)
        if life is not None:
            self.run(replace(life, action=action, argument=argument))
            opened = Repository(self.repository)
            if action == "rotate":
                return
        publish(opened, action, argument)
        if action == "publish":
            self.left_versions.discard(argument)

    def run(self, life: Life, seconds: float | None = None) -> int:
        """Run a process, killed after `seconds` if given; return its number of disk changes."""
        receiver, sender = _PROCESS_CONTEXT.Pipe(duplex=False)
        process = _PROCESS_CONTEXT.Process(target=live, args=(life, sender))
        process.start()
        sender.close()
        n_changes = 0
        reached = bool(life.action)
        deadline = None if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(EOFError):
            while deadline is None or receiver.poll(max(0.0, deadline - time.monotonic())):
                event, value = receiver.recv()
                n_changes = value if event == "changes" else n_changes
                reached = reached or event == "reached"
                if event in ("started", "running", "reached"):
                    self._note_version(event, value)
                elif event == "late":
                    self.faults.append(f"runs {value} instead of {life.target}")
            process.kill()
        process.join()
        if process.exitcode not in (0, -signal.SIGKILL):
            self.faults.append(f"{life.action or 'update'} ended with status {process.exitcode}")
        if process.exitcode == 0 and not reached:
            self.faults.append("ended before it reached its release")
        return n_changes

    def _note_version(self, event: str, version: str) -> None:
        if version in self.left_versions:
            self.faults.append(f"{event} {version}, which was withdrawn and left")
        offers = Repository(self.repository).offers()
        withdrawn = {offer.version for offer in offers if offer.serial and not offer.rollout}
        if event != "started":
            self.left_versions |= withdrawn - {version}

    def reach(self) -> int:
        """Run the device until it has the published release; return its number of changes."""
        return self.run(replace(self.device, target=self.target()))


def kill_devices(fleet: Fleet, n_kills: int) -> dict[str, Any]:
    """Kill a device while it updates."""
    fleet.reach()
    fleet.change()
    started = time.monotonic()
    n_changes = fleet.reach()
    span = time.monotonic() - started
    for number in range(n_kills):
        fleet.change()
        life = replace(fleet.device, target=fleet.target())
        if number % 2:
            fleet.run(replace(life, n_changes=fleet.rng.randrange(n_changes)))
        else:
            fleet.run(life, fleet.rng.uniform(0.2, 1.0) * span)
        if number % CHECK_INTERVAL == CHECK_INTERVAL - 1:
            fleet.reach()
    return {"kills": n_kills, "faults": fleet.faults}


def kill_publishers(fleet: Fleet, n_kills: int) -> dict[str, Any]:
    """Kill a publisher; every :data:`CHECK_INTERVAL` kills, update a device from its repository."""
    fleet.reach()
    for number in range(n_kills):
        fleet.change(Life(fleet.repository, n_changes=fleet.rng.randrange(30)))
        if number % CHECK_INTERVAL == CHECK_INTERVAL - 1:
            fleet.reach()
    return {"kills": n_kills, "faults": fleet.faults}


def damage_files(fleet: Fleet, step: int) -> dict[str, Any]:
    """Truncate every `step`-th file of a store, then flip a bit of it."""
    store = _withdraw_one(fleet)
    files = [path.relative_to(store) for path in sorted(store.rglob("*")) if path.is_file()]
    for number, file in enumerate(files[::step]):
        for damage in ("cut", "flip"):
            copy = store.with_name(f"{damage}-{number}")
            shutil.copytree(store, copy, symlinks=True)
            content = bytearray((copy / file).read_bytes())
            if damage == "flip" and content:
                content[fleet.rng.randrange(len(content))] ^= 1 << fleet.rng.randrange(8)
            (copy / file).write_bytes(content if damage == "flip" else b"")
            n_faults = len(fleet.faults)
            fleet.run(replace(fleet.device, folder=copy, target=fleet.target()))
            fleet.faults[n_faults:] = [
                f"{damage} {file}: {text}" for text in fleet.faults[n_faults:]
            ]
            shutil.rmtree(copy)
    return {"files": len(files[::step]), "faults": fleet.faults}


def _withdraw_one(fleet: Fleet) -> Path:
    """Store of a device that has left a withdrawn release."""
    repository = Repository(fleet.repository)
    for version in ("2", "3"):
        repository.publish(f"iris/{version}")
        fleet.reach()
    repository.rollback("iris/3")
    fleet.reach()
    fleet.reach()  # passes its trial again, so that it cannot fall back to the withdrawn release
    return fleet.device.folder


def spoil_disks(fleet: Fleet, _: int) -> dict[str, Any]:
    """Withdraw the release of a device whose disk is full or read-only."""
    skipped = []
    for state in ("full", "read-only"):
        repository = Repository(fleet.repository)
        repository.publish("iris/2")
        repository.publish("iris/3")
        fleet.left_versions.clear()
        disk = fleet.device.folder.with_name(state)
        try:
            with _small_disk(disk) as spoil:
                device = replace(fleet.device, folder=disk / "store")
                fleet.run(replace(device, target="3"))
                spoil(state)
                repository.rollback("iris/3")
                for _ in range(3):
                    # The device cannot write. It therefore starts with the withdrawn release each
                    # time and changes to the first bundle, because the previous one has no space.
                    fleet.left_versions.clear()
                    fleet.run(replace(device, target=FIRST))
        except (OSError, subprocess.CalledProcessError):
            skipped.append(f"{state}: no disk can be mounted here")
    return {"skipped": skipped, "faults": fleet.faults}


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Callable[[str], None]]:
    """Mount a small disk; yield a function that fills it or makes it read-only."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    subprocess.run(mount, check=True, stderr=subprocess.DEVNULL)

    def spoil(state: str) -> None:
        if state == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            return
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    try:
        yield spoil
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


PARTS: dict[str, Callable[[Fleet, int], dict[str, Any]]] = {
    "devices": kill_devices,
    "publishers": kill_publishers,
    "files": damage_files,
    "disks": spoil_disks,
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the groups that are not cached; return the totals of all groups."""
    sizes = {"devices": DEVICE_KILLS, "publishers": PUBLISHER_KILLS}
    groups = [(part, number) for part, n in sizes.items() for number in range(n // GROUP)]
    n_kills = GROUP
    if options.quick:
        groups = [("devices", 0), ("publishers", 0)]
        n_kills = 4
    groups += [("files", 0), ("disks", 0)]
    cache = CACHE / ("kills-quick" if options.quick else "kills")
    if options.again:
        shutil.rmtree(cache, ignore_errors=True)
    _PROCESS_CONTEXT.set_forkserver_preload(
        ["gatewise_edge.update.updater", "gatewise_edge.device.device"]
    )
    results: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        bundles = Path(folder) / "bundles"
        for part, number in groups:
            file = cache / f"{part}-{number}.json"
            if not file.exists():
                if not bundles.exists():
                    _pack(bundles)
                work = Path(folder) / file.stem
                work.mkdir()
                fleet = Fleet(work, bundles, random.Random(f"{part} {number}"))
                size = (10 if options.quick else 1) if part == "files" else n_kills
                write_whole(file, json.dumps(PARTS[part](fleet, size)))
                shutil.rmtree(work)
            results[part].append(json.loads(file.read_text()))
            note(f"{part} {number}: {results[part][-1]}")
    return {"parts": {part: _total(groups) for part, groups in results.items()}}


def _pack(folder: Path) -> None:
    """Pack one small system under several versions."""
    from sklearn.datasets import load_iris

    from gatewise_export import pack
    from gatewise_training import StagedCascade

    X, y = load_iris(return_X_y=True)
    system = StagedCascade(n_stages=1, families=("linear",), random_state=0).fit(X, y)
    for version in (FIRST, *VERSIONS):
        pack(system, folder / version, name="iris", version=version, sample=X[:16])


def _total(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum the counts of a part's groups and join their messages."""
    names = ("kills", "files")
    counts = {name: sum(group.get(name, 0) for group in groups) for name in names}
    texts = {
        name: [text for group in groups for text in group.get(name, [])]
        for name in ("faults", "skipped")
    }
    return {name: value for name, value in (counts | texts).items() if value or name == "faults"}


def page(results: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    parts = results["parts"]
    rows = [
        ["a device that updates, kill -9", str(parts["devices"].get("kills", 0))],
        ["a publisher, kill -9", str(parts["publishers"].get("kills", 0))],
        ["each file of a store, cut and with a flipped bit", str(parts["files"].get("files", 0))],
        ["a disk that is full, and one that can only be read", "2"],
    ]
    for row, part in zip(rows, PARTS, strict=True):
        row.append(str(len(parts[part]["faults"])))
    lines = [
        "# Killed devices and publishers, damaged stores",
        "",
        "A device starts, answers, reaches the published release, and never runs one again that it "
        "has left because it was withdrawn; a repository opens. `make bench-kills` writes this "
        "page.",
        "",
        *harness.table_lines(["fault", "number", "broken promises"], rows),
        "",
    ]
    for part in PARTS:
        lines += [f"- {part}: {text}" for text in parts[part]["faults"]]
        lines += [f"- not run: {text}" for text in parts[part].get("skipped", [])]
    return lines


def main() -> int:
    """Run the benchmark; return 0, 2 for bad input, or 130 after Ctrl-C."""
    options = BENCHMARK.parser()
    options.add_argument("--again", action="store_true", help="remove the cached groups first")
    return BENCHMARK.main(parser=options)


BENCHMARK = harness.Benchmark(
    name="kills",
    description=__doc__,
    quick="few kills",
    packages=("gatewise", "tuf"),
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(main())
