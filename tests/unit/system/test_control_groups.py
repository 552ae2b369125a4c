"""What Linux's control groups leave, by files as the system has them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from edgespec.system import control_groups
from edgespec.system.machine import default_threads

MIB = 1 << 20


class Groups:
    """A process's folder in /proc and hierarchies of groups, both below a folder."""

    def __init__(self, folder: Path):
        self.process = folder / "self"
        self._folder = folder
        self._memberships = []
        self._mounts = ["22 1 0:1 / / rw - ext4 /dev/sda rw"]
        self.process.mkdir()

    def mounted(self, membership, kind, root="/"):
        """A hierarchy, by its lines in `cgroup` and (the end of it) in `mountinfo`."""
        folder = self._folder / f"hierarchy-{len(self._mounts)}"
        folder.mkdir()
        self._memberships.append(membership)
        self._mounts.append(f"30 22 0:2 {root} {folder} rw,nosuid shared:9 - {kind}")
        (self.process / "cgroup").write_text("\n".join(self._memberships))
        (self.process / "mountinfo").write_text("\n".join(self._mounts))
        return folder

    def free(self):
        return control_groups.free_bytes(self.process)

    def quota(self):
        return control_groups.processor_quota(self.process)


@pytest.fixture
def groups(tmp_path):
    return Groups(tmp_path)


def second(folder, most, used=0, cached=0):
    """A group of version 2."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 500\ninactive_file {cached}\nactive_file 100\n")


def first(folder, most, used=0, cached=0):
    """A group of version 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {cached}\n")


def test_without_groups_nothing_is_limited(groups):
    assert groups.free() is groups.quota() is None
    groups.mounted("0::/", "cgroup2 cgroup2 rw")
    assert groups.free() is groups.quota() is None


def test_a_container_sees_its_group_as_the_root(groups):
    second(groups.mounted("0::/", "cgroup2 cgroup2 rw"), 1000, used=900, cached=300)
    assert groups.free() == 400


@pytest.mark.parametrize("limited", ["", "user.slice", "user.slice/batch.scope"])
def test_the_least_of_a_group_and_those_above_it_counts(groups, limited):
    """As of systemd-run's, of which the root says nothing."""
    root = groups.mounted("0::/user.slice/batch.scope", "cgroup2 cgroup2 rw")
    second(root / "user.slice", "max")
    second(root / "user.slice/batch.scope", 900 * MIB)
    second(root / "user.slice/another.scope", MIB)
    second(root / limited, 100 * MIB, used=30 * MIB)
    assert groups.free() == 70 * MIB


def test_version_1_has_a_hierarchy_for_each_controller(groups):
    first(groups.mounted("3:cpuset:/set", "cgroup cgroup rw,cpuset") / "set", 1)
    groups.mounted("0::/service", "cgroup2 cgroup2 rw")
    memory = groups.mounted("4:cpu,memory:/job", "cgroup cgroup rw,cpu,memory")
    first(memory / "job", 100 * MIB, used=90 * MIB, cached=20 * MIB)
    for another in ("set", "service"):
        first(memory / another, 1)
    assert groups.free() == 30 * MIB


def test_a_container_of_version_1_sees_its_part_of_the_hierarchy(groups):
    folder = groups.mounted("4:memory:/docker/4f2", "cgroup cgroup ro,memory", "/docker/4f2")
    first(folder, 5 * MIB)
    assert groups.free() == 5 * MIB


@pytest.mark.parametrize(
    ("path", "root"), [("/elsewhere", "/"), ("/../job", "/"), ("/another", "/docker/4f2")]
)
def test_of_a_group_that_is_not_shown_what_is_above_it_counts(groups, path, root):
    second(groups.mounted(f"0::{path}", "cgroup2 cgroup2 rw", root), 5 * MIB)
    second(groups.process.parent / "job", 1)
    assert groups.free() == 5 * MIB


def test_processor_time_is_limited_by_the_least_quota(groups):
    root = groups.mounted("0::/pod/container", "cgroup2 cgroup2 rw")
    container = root / "pod/container"
    container.mkdir(parents=True)
    (container / "cpu.max").write_text("max 100000\n")
    assert groups.quota() is None
    (root / "pod/cpu.max").write_text("400000 100000\n")
    assert groups.quota() == 4
    (container / "cpu.max").write_text("75000 50000\n")
    assert groups.quota() == 1.5


def test_quotas_of_version_1(groups):
    folder = groups.mounted("4:cpu,cpuacct:/", "cgroup cgroup rw,cpu,cpuacct")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert groups.quota() is None
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    assert groups.quota() == 2.5


@pytest.mark.parametrize(
    ("cores", "allowed", "quota", "threads"),
    [
        (8, 16, None, 8), (None, 16, None, 16), (8, 3, None, 3),  # affinity has logical ones
        (8, 16, 64.0, 8), (8, 16, 6.0, 6), (8, 16, 1.9, 1), (8, 16, 0.5, 1), (8, 2, 4.0, 2),
    ],
)  # fmt: skip
def test_a_thread_for_each_whole_processor(monkeypatch, cores, allowed, quota, threads):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else cores)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    may_use = {0: set(range(allowed))}
    monkeypatch.setattr(os, "sched_getaffinity", may_use.get, raising=False)
    monkeypatch.setattr(control_groups, "processor_quota", lambda: quota)
    assert default_threads(Path("nowhere")) == threads


def test_a_system_without_affinity_has_all_its_cores(monkeypatch):
    """As Windows and macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    monkeypatch.setattr(control_groups, "processor_quota", lambda: None)
    assert default_threads() == 8


@pytest.mark.parametrize(("allowed", "threads"), [("01", 1), ("02", 2), ("012", 2), ("0123", 2)])
def test_two_processors_of_a_core_are_one(monkeypatch, tmp_path, allowed, threads):
    for number, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        (tmp_path / f"cpu{number}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(map(int, allowed)), raising=False)
    monkeypatch.setattr(control_groups, "processor_quota", lambda: None)
    assert default_threads(tmp_path) == threads
