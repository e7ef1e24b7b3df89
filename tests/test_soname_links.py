"""The SONAME links that a plan foretells for the loader cache step."""

import pytest

import hosts
from nvgraft.base.finding import Finding
from nvgraft.host.components import Component
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import MountedLibrary
from nvgraft.plan.soname_links import soname_links

LIBS = "/usr/lib64"
CUDA = "libcuda.so.535.54.03"


def component(name: str = CUDA, soname: str | None = "libcuda.so.1") -> Component:
    return Component(hosts.row("libcuda.so"), f"/host/{name}", "", 0o644, 0, soname)


def mounted(item: Component, directory: str) -> MountedLibrary:
    soname = item.name if item.soname is None else item.soname
    return MountedLibrary(directory, item.name, soname, 0)


def links(
    rootfs: str, *components: Component, directory: str = LIBS
) -> tuple[dict[str, str], list[Finding]]:
    tree = SnapshotTree(hosts.tree(rootfs))
    return soname_links(tree, [mounted(item, directory) for item in components or (component(),)])


def test_a_soname_link_is_created_beside_the_library() -> None:
    """A SONAME link is created in the directory of the mounted library."""
    assert links("") == ({f"{LIBS}/libcuda.so.1": CUDA}, [])


@pytest.mark.parametrize("soname", [None, "", CUDA, "../../etc/passwd", "/etc/x"])
def test_an_unusable_soname_gets_no_link(soname: str | None) -> None:
    """A library without a SONAME, named like its SONAME, or with a path as SONAME gets no link."""
    assert links("", component(soname=soname)) == ({}, [])


@pytest.mark.parametrize("leads", [CUDA, f"{LIBS}/{CUDA}"])
def test_a_correct_link_stays(leads: str) -> None:
    """An existing link to the library, relative or absolute, is not a change."""
    assert links(f"{LIBS}/libcuda.so.1 -> {leads}") == ({}, [])


def test_a_link_that_leads_elsewhere_is_replaced() -> None:
    """A link of the image to another driver version is replaced."""
    assert links(f"{LIBS}/libcuda.so.1 -> libcuda.so.470.1") == ({f"{LIBS}/libcuda.so.1": CUDA}, [])


@pytest.mark.parametrize(("entry", "kind"), [("libcuda.so.1", "file"), ("libcuda.so.1/", "dir")])
def test_anything_but_a_link_is_left_alone_and_reported(entry: str, kind: str) -> None:
    """A file or directory of the image in the link's place stays, with a finding that it hides the
    driver's library.
    """
    made, findings = links(f"{LIBS}/{entry}")
    assert made == {}
    assert findings == [
        Finding(
            "library-shadowed",
            "warning",
            f"{LIBS}/libcuda.so.1 is a {kind} of the image and hides the driver's {CUDA}",
            "remove driver libraries from the image",
        )
    ]


def test_a_greater_name_of_the_image_owns_the_link() -> None:
    """The greatest file name of a SONAME gets the link, by version numbers, as in ldconfig: 535.104
    before 535.54.
    """
    made, findings = links(f"{LIBS}/libcuda.so.535.104 elf libcuda.so.1")
    assert made == {f"{LIBS}/libcuda.so.1": "libcuda.so.535.104"}
    assert [finding.id for finding in findings] == ["library-shadowed"]
    assert (
        findings[0].message
        == f"{LIBS}/libcuda.so.1 will lead to libcuda.so.535.104 of the image, which ldconfig"
        f" prefers to the driver's {CUDA}"
    )


def test_the_greatest_of_several_owns_the_link() -> None:
    """Of several files the greatest gets the link, in any order of the directory."""
    made, _ = links(
        f"{LIBS}/libcuda.so.550.9 elf libcuda.so.1\n{LIBS}/libcuda.so.550.10 elf"
        f" libcuda.so.1\n{LIBS}/libcuda.so.540 elf libcuda.so.1"
    )
    assert made == {f"{LIBS}/libcuda.so.1": "libcuda.so.550.10"}


def test_a_greater_owner_that_is_linked_already_changes_nothing() -> None:
    """If the greater file of the image has the link already, only the finding is given."""
    made, findings = links(
        f"{LIBS}/libcuda.so.550.1 elf libcuda.so.1\n{LIBS}/libcuda.so.1 -> libcuda.so.550.1"
    )
    assert made == {}
    assert [finding.id for finding in findings] == ["library-shadowed"]


@pytest.mark.parametrize(
    "other",
    [
        "libcuda.so.470.1 elf libcuda.so.1",  # smaller
        "libcuda.so.550.1 elf libcuda.so.2",  # another SONAME
        "libcuda.so.550.1 elf -",  # no SONAME
        "libcuda.so.550.1",  # not a library but a placeholder of an earlier start
        "libcuda.so.550.1 -> libcuda.so.470.1",  # a link
        "libcuda.so.550.1/",
        # a digit to Unicode but not to C, where every digit is greater
        "libcuda.so.\u00b2 elf libcuda.so.1",
    ],
)
def test_other_files_do_not_get_the_link(other: str) -> None:
    """A file that is smaller, is not a library, or has another SONAME does not get the link."""
    assert links(f"{LIBS}/{other}") == ({f"{LIBS}/libcuda.so.1": CUDA}, [])


def test_each_directory_has_its_own_links() -> None:
    """A file in one directory does not affect the link in another."""
    tree = SnapshotTree(hosts.tree("/a/libcuda.so.550.1 elf libcuda.so.1"))
    made, _ = soname_links(tree, [mounted(component(), "/a"), mounted(component(), "/b")])
    assert made == {"/a/libcuda.so.1": "libcuda.so.550.1", "/b/libcuda.so.1": CUDA}


def test_libraries_of_the_driver_hide_none_of_their_own() -> None:
    """WSL2 has two files with one SONAME, one of them under that name: neither is of the image."""
    loader = component("libcuda_loader.so")
    assert links(f"{LIBS}/libcuda.so.1 elf libcuda.so.1", component("libcuda.so.1"), loader) == (
        {},
        [],
    )
    first, second = component("libcuda.so.1.1"), component("libcuda.so.1.2")
    both = f"{LIBS}/libcuda.so.1.1 elf libcuda.so.1\n{LIBS}/libcuda.so.1.2 elf libcuda.so.1"
    assert links(both, first, second) == ({f"{LIBS}/libcuda.so.1": "libcuda.so.1.2"}, [])
