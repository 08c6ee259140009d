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
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cache import CACHE, read_or_compute
from benchmarks.edge.killable_task import KillableTask, change_repository, run_task
from gatewise.console import note
from gatewise_export.repository.repository import Repository

#: Total numbers of kills, 1,000 together, and kills per group, whose results are cached together.
DEVICE_KILLS = 700
PUBLISHER_KILLS = 300
KILLS_PER_GROUP = 50
#: After this many kills, one process is not killed and must reach the published release.
CHECK_INTERVAL = 10
VERSIONS = ("1", "2", "3", "4", "5", "6")
FIRST_VERSION = "first"

_PROCESS_CONTEXT = multiprocessing.get_context("forkserver")


# -- device and repository ---------------------------------------------------------------------


class Fleet:
    """Repository of releases, store of a device, and withdrawn versions that it has left."""

    def __init__(self, folder: Path, bundles: Path, rng: random.Random) -> None:
        self.rng = rng
        self.repository = folder / "repository"
        self.bundles = bundles
        repository = Repository.init(self.repository)
        for version in VERSIONS[:3]:
            repository.add(bundles / version)
        repository.publish("iris/1")
        root_file = folder / "root.json"
        shutil.copy(repository.root_file, root_file)
        self.device = KillableTask(
            folder / "store",
            repository=self.repository,
            root_file=root_file,
            first_bundle=bundles / FIRST_VERSION,
        )
        self.left_versions: set[str] = set()
        self.faults: list[str] = []

    def target_version(self) -> str:
        """Return the version that the device must reach."""
        offer = Repository(self.repository).preferred_release("iris")
        return FIRST_VERSION if offer is None else offer.version

    def change_release(self, task: KillableTask | None = None) -> None:
        """Change the repository at random; with a `task`, a process does it and is killed."""
        repository = Repository(self.repository)
        offers = repository.offers()
        preferred_offer = repository.preferred_release("iris")
        actions = [("publish", offer.version) for offer in offers if offer != preferred_offer]
        actions += [] if preferred_offer is None else [("rollback", preferred_offer.version)]
        if task is not None:
            absent_versions = sorted(set(VERSIONS) - {offer.version for offer in offers})
            actions += [("add", str(self.bundles / version)) for version in absent_versions[:1]]
            actions += [("rotate", self.rng.choice(("targets", "snapshot", "timestamp", "root")))]
            actions += [("refresh", "")]
        action, argument = self.rng.choice(actions)
        if task is not None:
            self.run_process(replace(task, action=action, argument=argument))
            repository = Repository(self.repository)
            if action == "rotate":
                return
        change_repository(repository, action, argument)
        if action == "publish":
            self.left_versions.discard(argument)

    def run_process(self, task: KillableTask, seconds: float | None = None) -> int:
        """Run a process, killed after `seconds` if given; return its number of disk changes."""
        receiver, sender = _PROCESS_CONTEXT.Pipe(duplex=False)
        process = _PROCESS_CONTEXT.Process(target=run_task, args=(task, sender))
        process.start()
        sender.close()
        n_changes = 0
        has_reached_target = bool(task.action)
        deadline = None if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(EOFError):
            while deadline is None or receiver.poll(max(0.0, deadline - time.monotonic())):
                event, detail = receiver.recv()
                n_changes = detail if event == "changes" else n_changes
                has_reached_target = has_reached_target or event == "reached"
                if event in ("started", "running", "reached"):
                    self._note_version(event, detail)
                elif event == "late":
                    self.faults.append(f"runs {detail} instead of {task.target_version}")
            process.kill()
        process.join()
        if process.exitcode not in (0, -signal.SIGKILL):
            self.faults.append(f"{task.action or 'update'} ended with status {process.exitcode}")
        if process.exitcode == 0 and not has_reached_target:
            self.faults.append("ended before it reached its release")
        return n_changes

    def _note_version(self, event: str, version: str) -> None:
        if version in self.left_versions:
            self.faults.append(f"{event} {version}, which was withdrawn and left")
        offers = Repository(self.repository).offers()
        withdrawn_versions = {
            offer.version for offer in offers if offer.serial and not offer.rollout
        }
        if event != "started":
            self.left_versions |= withdrawn_versions - {version}

    def update_device(self) -> int:
        """Run the device until it has the published release; return its number of changes."""
        return self.run_process(replace(self.device, target_version=self.target_version()))


def kill_devices(fleet: Fleet, n_kills: int) -> dict[str, Any]:
    """Kill a device while it updates."""
    fleet.update_device()
    fleet.change_release()
    start_time = time.monotonic()
    n_changes = fleet.update_device()
    update_seconds = time.monotonic() - start_time
    for kill_number in range(n_kills):
        fleet.change_release()
        task = replace(fleet.device, target_version=fleet.target_version())
        # half of the kills before a change to the disk, half at a time within an update
        if kill_number % 2:
            fleet.run_process(replace(task, max_changes=fleet.rng.randrange(n_changes)))
        else:
            fleet.run_process(task, fleet.rng.uniform(0.2, 1.0) * update_seconds)
        if kill_number % CHECK_INTERVAL == CHECK_INTERVAL - 1:
            fleet.update_device()
    return {"kills": n_kills, "faults": fleet.faults}


def kill_publishers(fleet: Fleet, n_kills: int) -> dict[str, Any]:
    """Kill a publisher; every :data:`CHECK_INTERVAL` kills, update a device from its repository."""
    fleet.update_device()
    for kill_number in range(n_kills):
        fleet.change_release(KillableTask(fleet.repository, max_changes=fleet.rng.randrange(30)))
        if kill_number % CHECK_INTERVAL == CHECK_INTERVAL - 1:
            fleet.update_device()
    return {"kills": n_kills, "faults": fleet.faults}


def damage_files(fleet: Fleet, step: int) -> dict[str, Any]:
    """Truncate every `step`-th file of a store, then flip a bit of it."""
    store = _withdraw_one(fleet)
    files = [path.relative_to(store) for path in sorted(store.rglob("*")) if path.is_file()]
    for number, file in enumerate(files[::step]):
        for damage in ("cut", "flip"):
            damaged_store = store.with_name(f"{damage}-{number}")
            shutil.copytree(store, damaged_store, symlinks=True)
            content = bytearray((damaged_store / file).read_bytes())
            if damage == "flip" and content:
                content[fleet.rng.randrange(len(content))] ^= 1 << fleet.rng.randrange(8)
            (damaged_store / file).write_bytes(content if damage == "flip" else b"")
            n_faults = len(fleet.faults)
            fleet.run_process(
                replace(fleet.device, folder=damaged_store, target_version=fleet.target_version())
            )
            fleet.faults[n_faults:] = [
                f"{damage} {file}: {text}" for text in fleet.faults[n_faults:]
            ]
            shutil.rmtree(damaged_store)
    return {"files": len(files[::step]), "faults": fleet.faults}


def _withdraw_one(fleet: Fleet) -> Path:
    """Store of a device that has left a withdrawn release."""
    repository = Repository(fleet.repository)
    for version in ("2", "3"):
        repository.publish(f"iris/{version}")
        fleet.update_device()
    repository.rollback("iris/3")
    fleet.update_device()
    # the release passes its trial again; the device can then not fall back to the withdrawn one
    fleet.update_device()
    return fleet.device.folder


def spoil_disks(fleet: Fleet, _size: int) -> dict[str, Any]:
    """Withdraw the release of a device whose disk is full or read-only."""
    skipped = []
    for state in ("full", "read-only"):
        repository = Repository(fleet.repository)
        repository.publish("iris/2")
        repository.publish("iris/3")
        fleet.left_versions.clear()
        disk = fleet.device.folder.with_name(state)
        try:
            with _small_disk(disk) as spoil_disk:
                device = replace(fleet.device, folder=disk / "store")
                fleet.run_process(replace(device, target_version="3"))
                spoil_disk(state)
                repository.rollback("iris/3")
                for _ in range(3):
                    # The device cannot write. It therefore starts with the withdrawn release each
                    # time and changes to the first bundle, because the previous one has no space.
                    fleet.left_versions.clear()
                    fleet.run_process(replace(device, target_version=FIRST_VERSION))
        except (OSError, subprocess.CalledProcessError):
            skipped.append(f"{state}: no disk can be mounted here")
    return {"skipped": skipped, "faults": fleet.faults}


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Callable[[str], None]]:
    """Mount a small disk; yield a function that fills it or makes it read-only."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    subprocess.run(mount, check=True, stderr=subprocess.DEVNULL)

    def spoil_disk(state: str) -> None:
        if state == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            return
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    try:
        yield spoil_disk
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
    groups = [
        (part, number)
        for part, n_kills in sizes.items()
        for number in range(n_kills // KILLS_PER_GROUP)
    ]
    n_kills = KILLS_PER_GROUP
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
        for part, number in groups:
            size = (10 if options.quick else 1) if part == "files" else n_kills
            run_group = partial(_run_group, Path(folder), part, number, size)
            results[part].append(read_or_compute(cache / f"{part}-{number}.json", run_group))
            note(f"{part} {number}: {results[part][-1]}")
    return {"parts": {part: _total(groups) for part, groups in results.items()}}


def _run_group(folder: Path, part: str, number: int, size: int) -> dict[str, Any]:
    """Run a group of a part in a new fleet."""
    bundles = folder / "bundles"
    if not bundles.exists():
        _pack(bundles)
    with tempfile.TemporaryDirectory(dir=folder) as fleet_folder:
        fleet = Fleet(Path(fleet_folder), bundles, random.Random(f"{part} {number}"))
        return PARTS[part](fleet, size)


def _pack(folder: Path) -> None:
    """Pack one small system under several versions."""
    from sklearn.datasets import load_iris

    from gatewise_export import pack
    from gatewise_training import StagedCascade

    X, y = load_iris(return_X_y=True)
    system = StagedCascade(n_stages=1, families=("linear",), random_state=0).fit(X, y)
    for version in (FIRST_VERSION, *VERSIONS):
        pack(system, folder / version, name="iris", version=version, sample=X[:16])


def _total(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum the counts of a part's groups and join their messages."""
    counts = {key: sum(group.get(key, 0) for group in groups) for key in ("kills", "files")}
    messages = {
        key: [message for group in groups for message in group.get(key, [])]
        for key in ("faults", "skipped")
    }
    return {key: total for key, total in (counts | messages).items() if total or key == "faults"}


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
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
        "`make bench-kills` writes this page. After each fault, a device must start, answer and "
        "reach the published release, and it must never run a withdrawn release again. A "
        "repository must open afterwards.",
        "",
        *harness.table_lines(["fault", "number", "broken promises"], rows),
        "",
    ]
    for part in PARTS:
        lines += [f"- {part}: {text}" for text in parts[part]["faults"]]
        lines += [f"- not run: {text}" for text in parts[part].get("skipped", [])]
    return lines


BENCHMARK = harness.Benchmark(
    name="kills",
    quick_help="few kills",
    packages=("gatewise", "tuf"),
    measure=measure,
    page=page,
    options={"--again": {"action": "store_true", "help": "remove the cached groups first"}},
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
