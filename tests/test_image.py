"""Image archives as the target of a plan: layers are put together as an engine unpacks them, and
nothing is written to this machine's disk.
"""

import bz2
import gzip
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from bundles import EVERYTHING, make_bundle
from images import (
    Entry,
    docker_save,
    layer,
    link,
    oci_layout,
    tar_header,
    write_archive,
    write_directory,
)
from nvgraft.formats.elf import FileContent, read_facts
from nvgraft.formats.tree import Bounds, Tree
from nvgraft.plan.actions import Injection
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.image import tree as image_tree
from nvgraft_cli.case.image.archive import is_image, open_image
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.main import main
from nvgraft_cli.shell.progress import Progress
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]

GPU = {"Env": ["PATH=/bin", *EVERYTHING]}
DEBIAN: list[Entry] = [
    ("etc", None),
    ("etc/debian_version", b"12.5\n"),
    ("usr/lib/x", b"x" * 100_000),
]


def tree_of(path: str) -> Tree:
    return open_image(path).tree()


def listing(tree: Tree, path: str = "/") -> dict[str, str]:
    """Return every path below ``path`` with a file's content, a link's target, or the type of
    anything else.
    """
    contents: dict[str, str] = {}
    for name in tree.listdir(path):
        child = path.rstrip("/") + "/" + name
        node = tree.lstat(child)
        assert node is not None
        if node.type == "file":
            contents[child] = tree.read(child, 1 << 20).decode()
        elif node.type == "symlink":
            contents[child] = "-> " + node.target
        else:
            contents[child] = node.type
            contents |= listing(tree, child)
    return contents


FORMS: dict[str, Callable[[Path, list[list[Entry]], dict[str, Any]], str]] = {
    "docker": lambda place, layers, config: docker_save(
        place / "image.tar", *layers, config=config
    ),
    "oci archive": lambda place, layers, config: write_archive(
        place / "image.tar", oci_layout(*layers, config=config)
    ),
    "oci directory": lambda place, layers, config: write_directory(
        place / "image", oci_layout(*layers, config=config)
    ),
    "oci zstd": lambda place, layers, config: write_archive(
        place / "image.tar",
        oci_layout(*layers, config=config, compress=zstandard.ZstdCompressor().compress),
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_upper_layers_change_lower_ones(
    form: Callable[[Path, list[list[Entry]], dict[str, Any]], str], tmp_path: Path
) -> None:
    """An upper layer adds, replaces and removes files and directories; an opaque directory hides
    its old content.
    """
    lower: list[Entry] = [
        ("a/keep", b"1"),
        ("a/gone", b"1"),
        ("a/replaced", b"1"),
        ("b/x/deep", b"1"),
        ("c/old", b"1"),
        ("c/sub/old", b"1"),
        ("d/file", b"1"),
        ("link", link("a")),
        ("big", b"x" * 100_000),
    ]
    upper: list[Entry] = [
        ("a/.wh.gone", b""),
        ("a/replaced", b"2"),
        (".wh.b", b""),
        ("c/new", b"2"),
        ("c/.wh..wh..opq", b""),
        ("c/sub/new", b"2"),
        ("d", b"a file now"),
        ("link/through", b"2"),
        ("./dotted", b"2"),
        ("again", link("a/keep", tarfile.LNKTYPE)),
    ]
    tree = tree_of(form(tmp_path, [lower, upper], {}))
    assert listing(tree) == {
        "/a": "dir",
        "/a/keep": "1",
        "/a/replaced": "2",
        "/a/through": "2",
        "/again": "1",
        "/big": "x" * 100_000,
        "/c": "dir",
        "/c/new": "2",
        "/c/sub": "dir",
        "/c/sub/new": "2",
        "/d": "a file now",
        "/dotted": "2",
        "/link": "-> a",
    }


def test_a_whiteout_hides_nothing_of_its_own_layer(tmp_path: Path) -> None:
    """A whiteout hides only entries of lower layers, also when it comes after new entries of its
    own layer.
    """
    lower: list[Entry] = [("d/old", b"1"), ("f", b"1")]
    upper: list[Entry] = [
        ("d", None),
        ("d/new", b"2"),
        ("f", b"2"),
        (".wh.d", b""),
        (".wh.f", b""),
        (".wh.never-there", b""),
    ]
    assert listing(tree_of(docker_save(tmp_path / "i.tar", lower, upper))) == {
        "/d": "dir",
        "/d/new": "2",
        "/f": "2",
    }


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_image_is_planned_like_its_root_file_system(
    form: Callable[[Path, list[list[Entry]], dict[str, Any]], str], tmp_path: Path
) -> None:
    """An image gets the same actions and links as a bundle with the same files and variables."""
    image, _ = plan_bundle(form(tmp_path, [DEBIAN], GPU), "eks-t4", None)
    files = ("etc/debian_version", "usr/lib/x")
    bundle, _ = plan_bundle(
        str(make_bundle(tmp_path / "b", *EVERYTHING, files=files)), "eks-t4", None
    )
    assert isinstance(image, Injection)
    assert image.actions == bundle.actions
    assert image.links == bundle.links
    assert image.target.libs_dir == "/usr/lib/x86_64-linux-gnu"


def test_env_overrides_the_variables_of_an_image(tmp_path: Path, capsys: Captured) -> None:
    """The image's variables are used, and --env overrides them, as `docker run -e` does."""
    path = docker_save(tmp_path / "i.tar", DEBIAN, config={"Env": ["NVIDIA_VISIBLE_DEVICES=void"]})
    assert plan_bundle(path, "eks-t4", None)[0].decision == "skip"
    assert (
        main(["plan", "--bundle", path, "--host", "eks-t4", "--env", "NVIDIA_VISIBLE_DEVICES=all"])
        == 0
    )
    assert capsys.readouterr().out.startswith("inject: ")
    assert (
        main(["plan", "--bundle", path, "--host", "eks-t4", "--env", "NVIDIA_VISIBLE_DEVICES"]) == 2
    )
    assert (
        capsys.readouterr().err
        == "nvgraft plan: --env NVIDIA_VISIBLE_DEVICES: no value: write NAME=VALUE\n"
    )


def test_a_root_file_system_alone_is_planned(tmp_path: Path) -> None:
    """A bare rootfs is accepted as a bundle; its variables come from the command line."""
    rootfs = tmp_path / "rootfs"
    (rootfs / "etc").mkdir(parents=True)
    (rootfs / "etc/debian_version").touch()
    assert plan_bundle(str(rootfs), "eks-t4", None)[0].decision == "skip"
    plan, refusal = plan_bundle(str(rootfs), "eks-t4", None, EVERYTHING)
    assert refusal is None
    assert isinstance(plan, Injection)
    assert plan.target.rootfs == str(rootfs)
    assert (
        plan.actions
        == plan_bundle(str(make_bundle(tmp_path / "b", *EVERYTHING)), "eks-t4", None)[0].actions
    )


def test_a_config_json_alone_is_planned(tmp_path: Path) -> None:
    """A config.json without its bundle is planned, with its rootfs if it exists and without one if
    not.
    """
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    with open_container(f"{bundle}/config.json") as container:
        assert container.rootfs_known
    plan, _ = plan_bundle(f"{bundle}/config.json", "eks-t4", None)
    assert isinstance(plan, Injection)
    assert plan.target.libs_dir == "/usr/lib/x86_64-linux-gnu"
    alone = tmp_path / "web.json"
    alone.write_bytes((bundle / "config.json").read_bytes())
    with open_container(str(alone)) as container:
        assert not container.rootfs_known
    plan, refusal = plan_bundle(str(alone), "eks-t4", None)
    assert refusal is None
    assert isinstance(plan, Injection)
    assert plan.target.libs_dir == "/usr/lib64"


def test_variables_are_added_to_a_bundle(tmp_path: Path) -> None:
    """--env adds variables to a bundle's; a config.json that the hook refuses stays refused."""
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all")
    plan, _ = plan_bundle(str(bundle), "eks-t4", None, ["NVIDIA_DRIVER_CAPABILITIES=utility"])
    assert isinstance(plan, Injection)
    assert plan.request.capabilities == ("utility",)
    (bundle / "config.json").write_text("{")
    _, refusal = plan_bundle(str(bundle), "eks-t4", None, ["A=b"])
    assert refusal is not None
    assert "could not decode OCI spec" in refusal.line()


HOSTILE: dict[str, tuple[list[Entry], str]] = {
    "leads out": ([("../../etc/cron.d/x", b"x")], "leads out of its directory"),
    "leads out in the middle": ([("a/../../x", b"x")], "leads out of its directory"),
    "through a link that leads out": (
        [("out", link("../../..")), ("out/x", b"x")],
        "resolves outside of",
    ),
    "through a loop": (
        [("a", link("b")), ("b", link("a")), ("a/x", b"x")],
        "too many levels of symbolic links",
    ),
    "hard link to nothing": (
        [("x", link("/etc/shadow", tarfile.LNKTYPE))],
        "which the image does not have",
    ),
    "below a file": ([("a", b"x"), ("a/b", b"x")], "not a directory"),
}


@pytest.mark.parametrize(("entries", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_layer_is_one_line(
    entries: list[Entry], words: str, tmp_path: Path, capsys: Captured
) -> None:
    """A hostile layer makes plan exit 2, with one line that names the archive and the fault."""
    path = docker_save(tmp_path / "i.tar", entries, config=GPU)
    assert main(["plan", "--bundle", path, "--host", "eks-t4"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"nvgraft plan: {path}: ")
    assert words in err
    assert err.count("\n") == 1


def test_absolute_names_devices_and_links_stay_in_the_image(tmp_path: Path) -> None:
    """Absolute names, device nodes and links stay inside the image: nothing of this machine is
    opened or made.
    """
    device = link("", tarfile.CHRTYPE)
    device.devmajor, device.devminor = 1, 3
    entries: list[Entry] = [
        ("/abs", b"in the image"),
        ("null", device),
        ("shadow", link("/etc/shadow")),
        ("fifo", link("", tarfile.FIFOTYPE)),
    ]
    tree = tree_of(docker_save(tmp_path / "i.tar", entries))
    assert listing(tree) == {
        "/abs": "in the image",
        "/null": "char",
        "/shadow": "-> /etc/shadow",
        "/fifo": "fifo",
    }
    node = tree.lstat("/null")
    assert node is not None
    assert node.rdev == (1, 3)
    assert tree.find("/shadow") == ("/etc/shadow", None)
    for path in ("/null", "/fifo", "/shadow"):
        with pytest.raises(OSError, match="not a regular file"):
            tree.read(path, 100)
    with pytest.raises(FileNotFoundError):
        tree.read("/etc/shadow", 100)


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def damaged(place: Path) -> dict[str, tuple[str, str]]:
    """Return broken archives: the path of each and a pattern for the error."""
    whole = Path(docker_save(place / "whole.tar", DEBIAN, config=GPU)).read_bytes()
    layout = oci_layout(DEBIAN, config=GPU)
    loop = b'{"manifests": [{"digest": "a:b"}]}'
    claim = tarfile.TarInfo("endless")
    claim.size = 1 << 60

    def compressed(name: str, compress: Callable[[bytes], bytes]) -> str:
        return write_archive(
            place / f"{name}.tar", oci_layout(DEBIAN, config=GPU, compress=compress)
        )

    def of(name: str, **files: bytes) -> str:
        return write_archive(
            place / f"{name}.tar", {key.replace("_", "."): data for key, data in files.items()}
        )

    cases: dict[str, tuple[bytes | str, str]] = {
        "truncated": (
            truncated(whole),
            "the archive is incomplete|neither manifest.json|not a tar archive",
        ),
        "empty": (b"", "not a tar archive|neither manifest.json"),
        "no archive": (b"hello" * 1000, "not a tar archive"),
        "compressed": (gzip.compress(whole), "decompress it first"),
        "a layer alone": (layer(DEBIAN), "has neither manifest.json nor index.json"),
        "several images": (
            docker_save(place / "several.tar", DEBIAN, tags=2),
            r"it has 2 images \(web:0, web:1\)",
        ),
        "bzip2 layer": (compressed("bz", bz2.compress), "compressed with bzip2"),
        "broken layer": (
            compressed("bl", lambda data: truncated(gzip.compress(data))),
            "the archive is damaged",
        ),
        "an entry that is never there": (
            compressed("be", lambda _: claim.tobuf(tarfile.GNU_FORMAT)),
            "the archive is damaged",
        ),
        "layer that is none": (compressed("ln", lambda _: b"x" * 5000), "the archive is damaged"),
        "no json": (of("nj", manifest_json=b"{"), "manifest.json: not JSON"),
        "other json": (of("oj", manifest_json=b"[1]"), "its manifest lacks"),
        "bad digest": (
            of("bd", index_json=b'{"manifests": [{"digest": "sha256:../../x"}]}'),
            "its manifest lacks",
        ),
        "missing blob": (
            of("mb", index_json=layout["index.json"]),
            "is missing: the archive is incomplete",
        ),
        "endless index": (
            write_archive(place / "ei.tar", {"index.json": loop, "blobs/a/b": loop}),
            "leads to no image",
        ),
    }
    archives = {}
    for name, (content, words) in cases.items():
        path = content if isinstance(content, str) else str(place / f"{name}.tar")
        if isinstance(content, bytes):
            Path(path).write_bytes(content)
        archives[name] = (path, words)
    return archives


def test_a_damaged_archive_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    """A damaged archive makes plan exit 2, with one line that names the archive and the fault."""
    for name, (path, words) in damaged(tmp_path).items():
        assert main(["plan", "--bundle", path, "--host", "eks-t4"]) == 2, name
        out, err = capsys.readouterr()
        assert out == "", name
        assert err.startswith(f"nvgraft plan: {path}: "), (name, err)
        with pytest.raises(InputError, match=words):
            plan_bundle(path, "eks-t4", None)
        assert err.count("\n") == 1, (name, err)


def test_every_truncation_is_an_input_error(tmp_path: Path) -> None:
    """An archive cut at any block is an input error, never a plan of half an image or another
    exception.
    """
    whole = Path(
        docker_save(tmp_path / "whole.tar", [("etc/debian_version", b"12\n")], config=GPU)
    ).read_bytes()
    path = tmp_path / "cut.tar"
    end = len(whole.rstrip(b"\0"))
    for size in range(0, end, 256):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            plan_bundle(str(path), "eks-t4", None)


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    """An archive with more entries than the limit is refused, so that names alone cannot fill the
    memory.
    """
    path = docker_save(tmp_path / "i.tar", [(f"f{number}", b"") for number in range(4)])
    with pytest.raises(InputError, match=r"i.tar: 4 names .* more than image-names = 3 allows"):
        open_image(path).tree(Bounds(names=3))


def test_file_contents_in_memory_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File contents beyond the memory limit are read from the archive again."""
    path = docker_save(tmp_path / "i.tar", [("a", b"1" * 50), ("b", b"2" * 50), ("c", b"3" * 50)])
    monkeypatch.setattr("nvgraft_cli.case.image.tree.KEPT_TOTAL", 60)
    tree = tree_of(path)
    assert [tree.read(f"/{name}", 100)[:1] for name in "abc"] == [b"1", b"2", b"3"]
    with pytest.raises(OSError, match="larger than 40 bytes"):
        tree.read("/a", 40)


def test_facts_of_an_elf_file_are_read_from_the_archive(tmp_path: Path) -> None:
    """The ELF facts of a file in an archive are those of the file itself, here this machine's C
    library.
    """
    library = next(
        path
        for path in (
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib/aarch64-linux-gnu/libc.so.6",
            "/usr/lib64/libc.so.6",
        )
        if os.path.exists(path)
    )
    tree = tree_of(
        write_archive(
            tmp_path / "i.tar", oci_layout([("lib/libc.so.6", Path(library).read_bytes())])
        )
    )
    facts = tree.elf("/lib/libc.so.6", sections=False)
    assert facts.soname == "libc.so.6"
    with pytest.raises(ValueError, match="not an ELF file"):
        tree_of(docker_save(tmp_path / "j.tar", [("x", b"no")])).elf("/x", sections=False)


def tables_at_the_end(size: int, soname: bytes) -> bytes:
    """Return a library whose dynamic section and strings are at its end, as patchelf writes them."""
    dynamic, strings = size - 200, size - 100
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    tables = struct.pack("<IIQQQQQQ", 2, 6, dynamic, dynamic, dynamic, 64, 64, 8)
    data = bytearray(size)
    data[:176] = b"\x7fELF\2\1\1" + bytes(9) + header + load + tables
    data[dynamic : dynamic + 64] = struct.pack("<qQqQqQqQ", 14, 1, 5, strings, 10, 100, 0, 0)
    data[strings + 1 : strings + 1 + len(soname)] = soname
    return bytes(data)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_of_a_large_library_only_parts_are_in_memory(
    form: Callable[[Path, list[list[Entry]], dict[str, Any]], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library larger than the limit is read in parts that its tables lead to; a hard link is the
    same file.
    """
    monkeypatch.setattr(image_tree, "_WHOLE", 100_000)
    monkeypatch.setattr(image_tree, "_FIRST_PARTS", 1)
    files: list[Entry] = [
        ("lib/one.so", tables_at_the_end(1 << 20, b"one")),
        ("lib/two.so", tables_at_the_end(2 << 20, b"two")),
        ("lib/link.so", link("lib/two.so", tarfile.LNKTYPE)),
    ]
    tree = open_image(form(tmp_path, [files], {})).tree()
    largest = 0
    names = {}

    def look(path: str, content: FileContent) -> None:
        nonlocal largest
        assert isinstance(content, image_tree._Parts)
        largest = max(largest, sum(map(len, content.data.values())))
        names[path] = read_facts(content, sections=False).soname

    tree.visit([f"/lib/{name}.so" for name in ("one", "two", "link")], look)
    assert names == {"/lib/one.so": "one", "/lib/two.so": "two", "/lib/link.so": "two"}
    assert largest < 200_000


def test_tables_that_lead_on_and_on_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose reader always wants another part is an error after a few times."""
    monkeypatch.setattr(image_tree, "_WHOLE", 0)
    tree = open_image(docker_save(tmp_path / "i.tar", [("x", bytes(4 << 20))])).tree()
    wanted = iter(range(1 << 20, 4 << 20, 1 << 16))

    def look(_path: str, content: FileContent) -> None:
        content.read(next(wanted), 10)

    with pytest.raises(OSError, match="too far apart"):
        tree.visit(["/x"], look)


@pytest.mark.parametrize("where", ["the layer", "a file of it"])
def test_a_layer_that_grows_without_end_is_refused(where: str, tmp_path: Path) -> None:
    """A few kilobytes that decompress to any size are read no longer than the bound allows."""
    packed = io.BytesIO()
    entry = tarfile.TarInfo("usr/lib/libx.so.1")
    entry.size = 1 << 30
    with zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as writer:
        writer.write(entry.tobuf())
        for _ in range(1 << 10):
            writer.write(bytes(1 << 20))
        writer.write(bytes(1024))
    image = open_image(
        write_archive(tmp_path / "i.tar", oci_layout([], compress=lambda _layer: packed.getvalue()))
    )
    if where == "the layer":
        with pytest.raises(InputError, match="seconds, more than image-seconds = 0 allows"):
            image.tree(Bounds(seconds=0))
        return
    tree = image.tree(Bounds(seconds=60))
    tree.bounds = Bounds(seconds=0)
    with pytest.raises(InputError, match="seconds, more than image-seconds = 0 allows"):
        tree.elf("/usr/lib/libx.so.1", sections=False)


def test_a_large_archive_gets_more_time(tmp_path: Path) -> None:
    """The time grows with the room that the archive takes on the disk, not with the size that it
    claims.
    """
    path = docker_save(tmp_path / "i.tar", [("x", os.urandom(1 << 20))])
    seconds = open_image(path).reading_seconds
    assert 0.05 < seconds < 0.06
    os.truncate(path, 1 << 40)
    assert open_image(path).reading_seconds < 2 * seconds


def test_images_are_recognised_by_their_form(tmp_path: Path) -> None:
    """A file that is not JSON, or a directory with an OCI layout, is taken for an image."""
    layout = write_directory(tmp_path / "layout", oci_layout(DEBIAN))
    bundle = make_bundle(tmp_path / "b")
    assert is_image(layout)
    assert is_image(docker_save(tmp_path / "i.tar", DEBIAN))
    assert not is_image(str(bundle))
    assert not is_image(f"{bundle}/config.json")
    assert not is_image(str(tmp_path / "none"))


def test_a_layout_directory_is_not_left(tmp_path: Path) -> None:
    """A layout directory cannot name or link to files outside of it."""
    (tmp_path / "secret").write_bytes(layer(DEBIAN))
    place = tmp_path / "image"
    for name in ("../secret", str(tmp_path / "secret"), "link"):
        manifest = [{"Config": "config.json", "Layers": [name]}]
        files = {
            "manifest.json": json.dumps(manifest).encode(),
            "config.json": b"{}",
            "oci-layout": b"",
            "index.json": b"",
        }
        write_directory(place, files)
        if name == "link" and not (place / name).is_symlink():
            (place / name).symlink_to(tmp_path / "secret")
        with pytest.raises(InputError, match="is missing: the archive is incomplete"):
            open_image(str(place))


def test_too_many_layers_are_refused(tmp_path: Path) -> None:
    """A manifest that names one layer a thousand times is refused before the layers are read."""
    manifest = [{"Config": "config.json", "Layers": ["layer"] * 1000}]
    files = {
        "manifest.json": json.dumps(manifest).encode(),
        "config.json": b"{}",
        "layer": layer(DEBIAN),
    }
    with pytest.raises(InputError, match="1000 layers"):
        open_image(write_archive(tmp_path / "image.tar", files))


def test_names_and_implied_directories_have_limits(tmp_path: Path) -> None:
    """A name longer than a path is refused, and implied parent directories count as entries."""
    with pytest.raises(InputError, match="4200 characters"):
        tree_of(docker_save(tmp_path / "long.tar", [("a" * 4200, b"")]))
    path = docker_save(
        tmp_path / "deep.tar", [("a/" * 60 + str(number), b"") for number in range(20)]
    )
    assert tree_of(path).lstat("/a/a") is not None
    with pytest.raises(InputError, match="image-names = 79"):
        open_image(path).tree(Bounds(names=79))


def test_replaced_files_count_towards_the_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents of replaced files count towards the memory limit, once for each; the rest is read
    from the archive.
    """
    monkeypatch.setattr(image_tree, "KEPT_TOTAL", 250)
    entries: list[Entry] = []
    for number in range(8):
        entries += [
            (f"f{number}", b"x" * 100),
            (f"h{number}", link(f"f{number}", tarfile.LNKTYPE)),
            (f"h{number}", b""),
            (f"f{number}", None),
        ]
    entries += [(f"last{number}", b"%d" % number * 100) for number in range(4)]
    tree = tree_of(docker_save(tmp_path / "image.tar", entries))
    assert isinstance(tree, image_tree.ImageTree)
    assert tree._kept <= 250
    assert [tree.read(f"/last{number}", 100) for number in range(4)] == [
        b"%d" % number * 100 for number in range(4)
    ]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (tar_header(tarfile.XHDTYPE, 2 << 20), "a header of 2097152 bytes"),
        (tar_header(tarfile.GNUTYPE_LONGNAME, 2 << 20), "a header of 2097152 bytes"),
        (tar_header(tarfile.XGLTYPE, 5000), "a header of 5000 bytes"),
        (tar_header(tarfile.XGLTYPE, 3000) * 2, "a header of 3000 bytes"),
        (tar_header(tarfile.GNUTYPE_LONGNAME, 1) * 6, "too many headers"),
        (tar_header(tarfile.GNUTYPE_SPARSE, 0), "with holes"),
    ],
    ids=[
        "attributes",
        "name",
        "common attributes",
        "common attributes in turn",
        "headers",
        "holes",
    ],
)
def test_headers_have_limits(entry: bytes, words: str, tmp_path: Path) -> None:
    """A header that is too large, too many headers, or a sparse file are refused."""
    manifest = [{"Config": "config.json", "Layers": ["layer"]}]
    files = {
        "manifest.json": json.dumps(manifest).encode(),
        "config.json": b"{}",
        "layer": layer(DEBIAN[:1])[:512] + entry + layer(DEBIAN),
    }
    image = open_image(write_archive(tmp_path / "image.tar", files))
    with pytest.raises(InputError, match=words):
        image.tree()


def test_a_deep_directory_is_hidden_and_replaced(tmp_path: Path) -> None:
    """A directory deeper than Python's stack (some two thousand levels) can be hidden and
    replaced.
    """
    deep: Entry = ("a/" * 2000 + "b", b"x")
    assert (
        listing_of_top(tree_of(docker_save(tmp_path / "hidden.tar", [deep], [(".wh.a", b"")])))
        == []
    )
    assert listing_of_top(
        tree_of(docker_save(tmp_path / "replaced.tar", [deep], [("a", b"")]))
    ) == ["a"]


def listing_of_top(tree: Tree) -> list[str]:
    return tree.listdir("/") + tree.listdir("/a")


@pytest.mark.parametrize("kind", ["docker save", "OCI archive", "OCI directory", "zstd"])
def test_reading_shows_how_much_is_left(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress counts the layers as they are stored, whatever their compression is."""
    parts = [[("etc/one", os.urandom(300_000))], [("etc/two", os.urandom(400_000))]]
    if kind == "docker save":
        path = docker_save(tmp_path / "i.tar", *parts)
    elif kind == "OCI directory":
        path = write_directory(tmp_path / "i", oci_layout(*parts))
    else:
        compress = zstandard.compress if kind == "zstd" else gzip.compress
        path = write_archive(tmp_path / "i.tar", oci_layout(*parts, compress=compress))
    shown: list[tuple[float, float]] = []

    class Counting(Progress):
        def __init__(self, what: str, total: float, unit: str) -> None:
            super().__init__(what, total, unit)
            shown.append((total, 0.0))

        def step(self, count: float = 1) -> None:
            total, done = shown[-1]
            shown[-1] = (total, done + count)

    monkeypatch.setattr(image_tree, "Progress", Counting)
    open_image(path).tree().close()
    ((total, done),) = shown
    assert 700_000 / 2**20 < total < 710_000 / 2**20 + 0.1
    assert done == pytest.approx(total, rel=0.02)
