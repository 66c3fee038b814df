"""Unpacking Debian packages without root."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from support import debian
from tailrace.testing.plugin import requires
from tailrace.testing.processes import ServerUnavailable


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILRACE_CACHE", str(tmp_path))
    return tmp_path


def test_a_suite_that_no_mirror_has_is_unavailable_and_leaves_nothing(cache):
    if shutil.which("apt-get") is None:
        pytest.skip("there is no apt here")
    with pytest.raises(ServerUnavailable, match="hello of Debian no-such-suite cannot be had"):
        debian.unpack("hello", "no-such-suite")
    assert [path.name for path in cache.iterdir()] == ["debian-no-such-suite-hello.lock"]


def test_a_machine_without_apt_is_told_so(cache, monkeypatch):
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(ServerUnavailable, match="without apt-get and dpkg-deb"):
        debian.unpack("hello", "sid")


def test_a_machine_without_a_mirror_is_told_so(cache, monkeypatch):
    monkeypatch.setattr(debian, "mirrors", list)
    monkeypatch.setattr(shutil, "which", str)
    with pytest.raises(ServerUnavailable, match="configured without a package mirror"):
        debian.unpack("hello", "sid")


def test_many_who_ask_at_once_make_one_folder(cache, monkeypatch):
    made = []

    def make(target, package, suite):
        made.append(target)
        target.mkdir()

    monkeypatch.setattr(debian, "_make", make)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: debian.unpack("hello", "sid").folder, range(8)))
    assert made == [cache / "debian-sid-hello"]
    assert set(folders) == set(made)


def test_the_machine_s_mirrors_are_no_security_archives():
    assert all("security" not in mirror for mirror in requires(debian.mirrors))
