"""The loader cache step without ldconfig is undone: the image is as it was."""

import os
import posix
import shutil
from pathlib import Path

import pytest

from descriptors import nothing_stays_open
from ldcaches import LIBS, container_at, image_with_cache, install_driver, library, tree, update
from nvgraft.apply.cache.native import NativeCache
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal

pytestmark = pytest.mark.requires("ldconfig", "x86_64")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return image_with_cache(tmp_path / "image")


def test_undo_leaves_the_image_as_it_was(image: Path) -> None:
    """The undo restores the cache, replaced links and a leftover of an earlier run, with contents
    and times, and removes the rest.
    """
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    (image / "etc/ld.so.cache~").write_text("left")
    library(image / "opt/lib/libnew.so.3.1", "libnew.so.3")
    install_driver(image)
    os.utime(image / "etc/ld.so.cache", (1, 1))
    (image / "etc/ld.so.cache").chmod(0o640)
    before = tree(image)
    undo = UndoLog()
    update(image, undo=undo, meanwhile=lambda: None)
    assert tree(image) != before
    assert undo.run() == []
    assert tree(image) == before


def test_undo_removes_a_new_etc(tmp_path: Path) -> None:
    """The undo removes a new /etc and the cache in it."""
    root = tmp_path / "empty"
    root.mkdir()
    install_driver(root)
    before = tree(root)
    undo = UndoLog()
    update(root, undo=undo, meanwhile=lambda: None)
    assert undo.run() == []
    assert tree(root) == before


@pytest.mark.parametrize(
    "call", ["open", "write", "fchmod", "rename", "symlink", "mkdir", "unlink"]
)
def test_each_failing_call_is_refused_and_undone(
    image: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """If any call fails for lack of space, the refusal has the reference's words and the cause, and
    the undo restores the image.
    """
    install_driver(image)
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    if call == "mkdir":
        shutil.rmtree(image / "etc")
    before = tree(image)
    real = getattr(os, call)

    def failing(*arguments: object, **named: object) -> object:
        if call != "open" or (isinstance(arguments[1], int) and arguments[1] & os.O_CREAT):
            monkeypatch.setattr(posix, call, real)
            raise OSError(28, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(posix, call, failing)
    undo = UndoLog()
    with pytest.raises(Refusal) as caught:
        update(image, undo=undo, meanwhile=lambda: None)
    assert (
        "failed with error code: 1 | the loader cache was not written: no space left on device"
        in caught.value.line()
    )
    assert undo.run() == []
    assert tree(image) == before


def test_undo_keeps_a_foreign_file_in_a_links_place(image: Path) -> None:
    """The undo does not remove a file that replaced a link of the step."""
    undo = UndoLog()
    update(image, undo=undo)
    (image / LIBS[1:] / "libcuda.so.1").unlink()
    (image / LIBS[1:] / "libcuda.so.1").write_text("somebody else's")
    assert undo.run() == []
    assert (image / LIBS[1:] / "libcuda.so.1").read_text() == "somebody else's"


@pytest.mark.parametrize("moment", ["before it is renamed", "when all is done"])
def test_undo_empties_and_names_a_cache_that_was_moved_away(
    image: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that was moved to an unknown place names libraries that are gone after the undo, so
    it is emptied, and its old path is reported.
    """
    undo = UndoLog()
    left: list[str] = []
    close = NativeCache.close

    def steal(name: str) -> None:
        os.replace(image / "etc" / name, image / "stolen")

    def stolen_from(source: str, *_: str, **__: int) -> None:
        steal(source)
        raise FileNotFoundError(2, "No such file or directory")

    def give_up(step: NativeCache) -> None:
        if moment == "when all is done":
            steal("ld.so.cache")
        left.extend(undo.run())
        close(step)

    before = (image / "etc/ld.so.cache").read_bytes()
    monkeypatch.setattr(NativeCache, "close", give_up)
    if moment == "before it is renamed":
        monkeypatch.setattr(posix, "rename", stolen_from)
        with pytest.raises(Refusal):
            update(image, undo=undo)
    else:
        update(image, undo=undo)
    assert left == ["/etc/ld.so.cache (it was moved or linked elsewhere)"]
    assert (image / "stolen").read_bytes() == b""
    if moment == "before it is renamed":
        assert (image / "etc/ld.so.cache").read_bytes() == before


def test_no_descriptor_is_left_open(image: Path) -> None:
    """The step closes every descriptor that it opens."""
    os.utime(image / "etc/ld.so.cache", (1, 1))
    update(image)
    os.utime(image / "etc/ld.so.cache", (1, 1))
    with nothing_stays_open():
        update(image)
        os.close(container_at(image).rootfs_fd)
