"""``nvgraft explain``: the steps of the story, its end, its links, and hostile names in it."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from bundles import EVERYTHING, make_bundle
from documents import read_document
from nvgraft.plan.actions import AllowDevice, Bind, Symlink, Tmpfs, WriteFile
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import open_host
from nvgraft_cli.case.planning import Case
from nvgraft_cli.explain.directories import TreeNode, before_and_after
from nvgraft_cli.shell import documentation
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]

DOCS = Path(__file__).parents[1] / "docs"
ALL = "NVIDIA_VISIBLE_DEVICES=all"


def story(capsys: Captured, bundle: Path, host: str = "runfile-a10x2", code: int = 0) -> Document:
    assert main(["explain", "--bundle", str(bundle), "--host", host, "--format", "json"]) == code
    document: Document = read_document(capsys.readouterr().out)
    return document


def step(document: Document, name: str) -> Document:
    (only,) = [step for step in document["steps"] if step["id"] == name]
    return dict(only)


def facts(document: Document, name: str) -> dict[str, tuple[str, str]]:
    return {fact["name"]: (fact["value"], fact["why"]) for fact in step(document, name)["facts"]}


def step_ids(document: Document) -> list[str]:
    return [step["id"] for step in document["steps"]]


def test_steps_follow_the_order_of_the_flow(tmp_path: Path, capsys: Captured) -> None:
    """A container that gets everything has all steps, in the order of the flow."""
    document = story(capsys, make_bundle(tmp_path / "b", *EVERYTHING))
    assert document["schema"] == "nvgraft.story/1"
    assert document["decision"] == "inject"
    assert step_ids(document) == [
        "asked",
        "host",
        "place",
        "files",
        "kernel",
        "loader",
        "original",
        "findings",
    ]


def test_each_request_says_where_it_came_from(tmp_path: Path, capsys: Captured) -> None:
    """Each request names the variable, the default or the image's layout that it comes from."""
    env = (
        ALL,
        "NVIDIA_REQUIRE_B=cuda>=11.0",
        "NVIDIA_REQUIRE_A=driver>=450",
        "NVIDIA_REQUIRE_JETPACK=csv",
    )
    document = story(capsys, make_bundle(tmp_path / "b", *env, files=("usr/bin/x",)))
    request = facts(document, "asked")
    assert request["devices"] == ("all", ALL)
    assert request["capabilities"] == (
        "compute, utility",
        "default: NVIDIA_DRIVER_CAPABILITIES is not set",
    )
    assert request["privileged"] == ("no", "CAP_SYS_ADMIN is not in the bounding set")
    requires = [
        (fact["value"], fact["why"])
        for fact in step(document, "asked")["facts"]
        if fact["name"] == "requires"
    ]
    assert requires == [("driver>=450", "NVIDIA_REQUIRE_A"), ("cuda>=11.0", "NVIDIA_REQUIRE_B")]
    assert facts(document, "place")["libraries"] == (
        "/usr/lib64",
        "the image has no /etc/debian_version",
    )


def test_an_old_image_and_mig_and_channels_are_facts(tmp_path: Path, capsys: Captured) -> None:
    """CUDA_VERSION alone asks for all devices; MIG administration needs a privileged container."""
    privileged = {
        "env": ["CUDA_VERSION=11.0", "NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_IMEX_CHANNELS=0"]
    }
    bundle = make_bundle(
        tmp_path / "b", process=privileged | {"capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}
    )
    request = facts(story(capsys, bundle, "mig-h100"), "asked")
    assert request["devices"] == ("all", "legacy image default")
    assert request["requires"] == ("cuda>=11.0", "CUDA_VERSION")
    assert request["MIG config"] == ("all", "NVIDIA_MIG_CONFIG_DEVICES")
    assert request["IMEX channels"][0] == "0"
    assert request["old CUDA image"][0] == "yes"
    assert request["privileged"] == ("yes", "CAP_SYS_ADMIN is in the bounding set")


def test_links_and_volumes_of_the_container_are_facts(tmp_path: Path, capsys: Captured) -> None:
    """Links and volumes are facts, except volumes below /dev, which runtimes add."""
    bundle = make_bundle(tmp_path / "b", ALL, mounts=("/data", "/dev/shm", "/devices"))
    (bundle / "rootfs/var").mkdir()
    (bundle / "rootfs/var/run").symlink_to("/run")
    document = story(capsys, bundle)
    assert facts(document, "place")["/var/run leads to"] == (
        "/run",
        "a link of the image, followed inside it",
    )
    assert [
        fact["value"] for fact in step(document, "place")["facts"] if fact["name"] == "volume"
    ] == ["/data", "/devices"]


@pytest.mark.parametrize("host", gallery.with_hook())
def test_every_action_of_the_plan_is_an_entry(host: str, tmp_path: Path, capsys: Captured) -> None:
    """Mounts, tmpfs files and device rules are entries of step kernel; links are of loader."""
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    document = story(capsys, bundle, host)
    plan, _ = plan_bundle(str(bundle), host, None)
    expected = []
    for action in plan.actions:
        if isinstance(action, Bind | Tmpfs):
            expected.append(action.target)
        elif isinstance(action, WriteFile):
            expected.append(action.path)
        elif isinstance(action, AllowDevice):
            expected.append(f"c {action.major}:{action.minor}")
    assert [entry["what"] for entry in step(document, "kernel")["entries"]] == expected
    links = [action.path for action in plan.actions if isinstance(action, Symlink)] + [
        path for path, _ in plan.links
    ]
    assert [entry["what"] for entry in step(document, "loader")["entries"]] == links
    files = {entry["what"]: entry["size"] for entry in step(document, "files")["entries"]}
    assert files == {
        action.target: action.size if action.kind == "file" else None
        for action in plan.actions
        if isinstance(action, Bind) and action.origin != "proc"
    }


def test_the_original_command_is_shown(tmp_path: Path, capsys: Captured) -> None:
    """The original command has the requested capabilities, and PID for the future process."""
    bundle = make_bundle(tmp_path / "b", ALL)
    (command, _) = facts(story(capsys, bundle), "original")["command"]
    assert command.startswith("nvidia-container-cli --load-kmods configure ")
    assert command.endswith(f"--device=all --compute --utility --pid=PID {bundle}/rootfs")


@pytest.mark.parametrize(
    ("mode", "maker"), [("native", "The hook, which"), ("ldconfig", "The host's ldconfig")]
)
def test_the_loader_step_says_who_creates_the_links(
    mode: str, maker: str, tmp_path: Path, capsys: Captured
) -> None:
    """The loader step names the hook or ldconfig as the maker of the links, as config.toml says."""
    config = tmp_path / "config.toml"
    config.write_text(f'[nvgraft]\nldcache = "{mode}"\n')
    bundle = str(make_bundle(tmp_path / "b", ALL))
    words = ["explain", "--bundle", bundle, "--host", "eks-t4", "--config", str(config)]
    assert main([*words, "--format", "json"]) == 0
    assert step(read_document(capsys.readouterr().out), "loader")["text"].startswith(maker)


def test_a_skip_ends_with_its_reason_and_what_would_change_it(
    tmp_path: Path, capsys: Captured
) -> None:
    """A skipped container has no steps of host and image, which the hook does not look at."""
    document = story(capsys, make_bundle(tmp_path / "b"))
    assert document["decision"] == "skip"
    assert step_ids(document) == ["asked", "end"]
    assert facts(document, "asked")["devices"] == ("not set", "NVIDIA_VISIBLE_DEVICES")
    end = facts(document, "end")
    assert end["because"] == ("not a GPU container: NVIDIA_VISIBLE_DEVICES is not set", "")
    assert end["what would change it"][0] == ALL


@pytest.mark.parametrize(
    ("env", "steps", "change"),
    [
        (
            ("NVIDIA_VISIBLE_DEVICES=7",),
            ["asked", "host", "place", "end"],
            "NVIDIA_VISIBLE_DEVICES=all",
        ),
        (
            (ALL, "NVIDIA_REQUIRE_CUDA=cuda>=99"),
            ["asked", "host", "place", "end"],
            "NVIDIA_DISABLE_REQUIRE=1",
        ),
        (
            (ALL, "NVIDIA_DRIVER_CAPABILITIES=nothing"),
            ["asked", "end"],
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        ((ALL, "NVIDIA_IMEX_CHANNELS=x"), ["asked", "end"], "no change of the environment does"),
    ],
)
def test_a_refusal_ends_where_the_decision_ended(
    env: tuple[str, ...], steps: list[str], change: str, tmp_path: Path, capsys: Captured
) -> None:
    """The last step has the hook's whole error line, later steps are missing, and the exit code is
    1.
    """
    document = story(capsys, make_bundle(tmp_path / "b", *env), code=1)
    assert document["decision"] == "refuse"
    assert step_ids(document) == steps
    end = facts(document, "end")
    assert " | " in end["because"][0]
    assert change in end["what would change it"]


#: Containers whose stories together have all steps, each with its exit code.
STORIES = ((EVERYTHING, 0), ((), 0), (("NVIDIA_VISIBLE_DEVICES=7",), 1))


def assert_leads_to_a_section(link: str, place: Path) -> None:
    """Check that a link, relative to ``place``, leads to a heading of a page of the guide."""
    path, _, anchor = unquote(link).partition("#")
    page = (place / path).resolve()
    assert page.parent == DOCS / "guide", link
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    assert anchor in [
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    ], link


def test_every_step_names_a_section_of_the_guide(tmp_path: Path, capsys: Captured) -> None:
    """Each step of the document has a section of its own in the guide."""
    links: dict[str, set[str]] = {}
    for number, (env, code) in enumerate(STORIES):
        for part in story(capsys, make_bundle(tmp_path / str(number), *env), code=code)["steps"]:
            links.setdefault(part["id"], set()).add(part["doc"])
    assert len(links) == 9
    assert len(set.union(*links.values())) == 10
    for link in set.union(*links.values()):
        assert_leads_to_a_section(link, DOCS)


def test_every_link_of_the_text_leads_to_a_section(tmp_path: Path, capsys: Captured) -> None:
    """Links of the text are absolute paths, which work in every directory."""
    for number, (env, code) in enumerate(STORIES):
        bundle = str(make_bundle(tmp_path / str(number), *env))
        assert main(["explain", "--bundle", bundle, "--host", "runfile-a10x2"]) == code
        out = capsys.readouterr().out
        links = re.findall(r"^   read more: (/.*)$", out, re.MULTILINE)
        assert len(links) == len(re.findall(r"^\d\. ", out, re.MULTILINE))
        for link in links:
            assert_leads_to_a_section(link, Path("/"))


@pytest.mark.parametrize(
    ("directory", "stories"), [(".", STORIES), ("some where/#1?/50%20", STORIES[:1])]
)
def test_every_link_of_the_page_leads_to_a_section(
    directory: str, stories: tuple[tuple[tuple[str, ...], int], ...], tmp_path: Path
) -> None:
    """Links of the page work in every directory, also in one with special characters."""
    place = tmp_path / directory
    place.mkdir(parents=True, exist_ok=True)
    for number, (env, code) in enumerate(stories):
        file = place / f"{number}.html"
        bundle = str(make_bundle(tmp_path / f"b{number}", *env))
        assert (
            main(["explain", "--bundle", bundle, "--host", "runfile-a10x2", "--html", str(file)])
            == code
        )
        written = Page(file.read_text())
        others = {"graft", "search", "start", "tree"}  # they are about no step
        sections = [tag for tag in written.named("section") if tag.get("id") not in others]
        links = written.outer_links()
        assert len(links) == len(sections)
        for link in links:
            assert_leads_to_a_section(link, place)


def test_without_documentation_nothing_is_a_link(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has no documentation: sections are named without links."""
    monkeypatch.setattr(documentation, "directory", lambda: None)
    written = page(tmp_path, "NVIDIA_VISIBLE_DEVICES=all")
    assert written.outer_links() == []
    assert "docs/guide/4-the-plan.md#what-goes-where" in written.content["cite"]
    assert main(["explain", "--bundle", str(tmp_path / "b"), "--host", "eks-t4"]) == 0
    assert "   read more: docs/guide/4-the-plan.md#what-goes-where\n" in capsys.readouterr().out


def test_text_gives_each_reason_once(tmp_path: Path, capsys: Captured) -> None:
    """The text numbers its steps, and groups files by capability with their sizes."""
    bundle = str(make_bundle(tmp_path / "b", *EVERYTHING))
    assert main(["explain", "--bundle", bundle, "--host", "eks-t4"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(\d)\. ", out, re.MULTILINE) == list("12345678")
    assert re.search(r"^   utility  \d+, [\d.]+ [KMG]iB$", out, re.MULTILINE)
    assert f"   read more: {DOCS}/guide/4-the-plan.md#what-goes-where\n" in out
    assert out.count("(nvidia-smi: PATH: /usr/bin/nvidia-smi)") == 1
    assert "\x1b" not in out


def test_control_characters_are_escaped(tmp_path: Path, capsys: Captured) -> None:
    """Control characters and direction marks, which reverse a part of a line, are escaped."""
    bundle = make_bundle(tmp_path / "b", ALL, mounts=("/data/\u202egnp.exe\x1b[2J",))
    assert main(["explain", "--bundle", str(bundle), "--host", "eks-t4"]) == 0
    assert re.search(r"volume +/data/\\u202egnp.exe\\x1b\[2J", capsys.readouterr().out)


# ---- the tree


Nodes = dict[str, TreeNode]


def by_path(node: TreeNode) -> Nodes:
    nodes = {node.path: node}
    for child in node.children:
        nodes |= by_path(child)
    return nodes


def trees(bundle: Path, host: str = "runfile-a10x2") -> tuple[Nodes, Nodes]:
    """Return the nodes of the trees before and after, by path."""
    with open_container(str(bundle)) as container:
        case = Case(open_host(host, None), container)
        before, after = before_and_after(case, case.outcome[0])
    return by_path(before), by_path(after)


def test_the_tree_has_the_planned_paths_and_their_parents(tmp_path: Path) -> None:
    """The tree after the hook has every target with its reason; other names are counted."""
    files = (
        "etc/debian_version",
        "etc/passwd",
        "usr/lib/x86_64-linux-gnu/libc.so.6",
        "usr/bin/nvidia-smi",
        "etc/ld.so.cache",
    )
    bundle = make_bundle(tmp_path / "b", *EVERYTHING, files=files)
    before, after = trees(bundle)
    assert (before["/etc"].others, before["/usr/lib/x86_64-linux-gnu"].others) == (2, 1)
    assert "/etc/passwd" not in before | after
    assert (before["/usr/bin/nvidia-smi"].state, after["/usr/bin/nvidia-smi"].state) == (
        "image",
        "over",
    )
    assert (before["/etc/ld.so.cache"].state, after["/etc/ld.so.cache"].state) == (
        "image",
        "changed",
    )
    assert after["/etc"].others == 2
    plan, _ = plan_bundle(str(bundle), "runfile-a10x2", None)
    for action in plan.actions:
        if isinstance(action, Bind):
            assert after[action.target].how.startswith(f"bind {action.source}")
            assert after[action.target].capability == (action.why.capability or "always")
            assert action.target in before or after[action.target].state == "new"
    for path, target in plan.links:
        assert after[path].how == f"link to {target}"
        assert after[path].kind == "symlink"
    assert after["/usr/lib/x86_64-linux-gnu/libcuda.so.1"].capability == "compute"


def test_a_tmpfs_hides_what_the_image_has(tmp_path: Path) -> None:
    """Names below a new tmpfs are counted before, and not after."""
    profiles = "etc/nvidia/nvidia-application-profiles-rc.d"
    before, after = trees(make_bundle(tmp_path / "b", *EVERYTHING, files=(f"{profiles}/mine",)))
    assert before[f"/{profiles}"].others == 1
    assert (after[f"/{profiles}"].kind, after[f"/{profiles}"].others) == ("tmpfs", 0)


# ---- the page


class Page(HTMLParser):
    """A page, read by Python's parser."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = f"{tag} {dict(attrs).get('type', '')}".strip()

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.content[self._inside] = self.content.get(self._inside, "") + data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def outer_links(self) -> list[str]:
        """Return the links that lead out of the page."""
        links = [str(attributes["href"]) for attributes in self.named("a")]
        return [link for link in links if not link.startswith("#")]


def page(
    place: Path, *env: str, code: int = 0, options: tuple[str, ...] = (), **changes: Any
) -> Page:
    file = place / "page.html"
    bundle = str(make_bundle(place / "b", *env, **changes))
    words = ["explain", "--bundle", bundle, "--host", "runfile-a10x2", "--html", str(file)]
    assert main([*words, *options]) == code
    return Page(file.read_text())


def test_the_policy_admits_only_the_page_s_own_style_and_script(tmp_path: Path) -> None:
    """The policy names style and script by their hashes, and the page loads nothing."""
    written = page(tmp_path, *EVERYTHING)
    (policy,) = [
        tag["content"]
        for tag in written.named("meta")
        if tag.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(written.content[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not [
        attributes for _, attributes in written.tags if "src" in attributes or "style" in attributes
    ]
    assert [tag["href"] for tag in written.named("link")] == ["data:,"]
    assert not re.search(r"url\(|@import", written.content["style"])


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """Hostile names are escaped in text, attributes and data, and create no element."""
    hostile = "/data/</script><script>alert(1)</script><img src=x onerror='x'>\"&amp;\u202e\x1b[2J"
    written = page(tmp_path, *EVERYTHING, mounts=(hostile,))
    assert len(written.named("script")) == 2
    assert written.named("img") == []
    assert hostile.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b") in written.content["code"]
    data = written.content["script application/json"]
    assert not set("<>&\u202e") & set(data)
    values = [fact["value"] for step in json.loads(data)["steps"] for fact in step["facts"]]
    assert hostile in values


def test_hostile_hosts_and_variables_stay_text(tmp_path: Path) -> None:
    """Names of GPUs, libraries, sockets and hosts, and variables, are text in every section."""
    mark = "<img src=x onerror=1>'\"&lt;\u202e"
    host = json.loads(Path(gallery.path("runfile-a10x2")).read_text())
    host["name"] = f"host {mark}"
    host["nvml"]["gpus"][0]["model"] = f"GPU {mark}"
    firmware = json.dumps(f"gsp_{mark}.bin")[1:-1]
    text = json.dumps(host).replace("gsp_ga10x.bin", firmware)
    document, file = tmp_path / "host.json", tmp_path / "page.html"
    document.write_text(text)
    bundle = make_bundle(tmp_path / "b", *EVERYTHING, f"LD_LIBRARY_PATH=/{mark}", files=("bin/sh",))
    words = ["explain", "--bundle", str(bundle), "--host", str(document), "--html", str(file)]
    assert main(words) == 0
    written = Page(file.read_text())
    assert {"img", "lt"}.isdisjoint({tag for tag, _ in written.tags})
    assert len(written.named("script")) == 2
    assert not [name for _, given in written.tags for name in given if name.startswith("on")]
    assert "\u202e" not in file.read_text()
    shown = written.content
    assert f"GPU {mark}".replace("\u202e", "\\u202e") in shown["code"]
    assert f"gsp_{mark}.bin".replace("\u202e", "\\u202e") in shown["code"]


def test_links_lead_to_the_documentation(tmp_path: Path, capsys: Captured) -> None:
    """--docs sets the address of the documentation; one that would run a script is refused."""
    written = page(tmp_path, ALL)
    links = [str(tag["href"]) for tag in written.named("a")]
    inner = {link[1:] for link in links if link.startswith("#")}
    assert inner <= {str(attributes.get("id")) for _, attributes in written.tags}
    elsewhere = page(tmp_path, ALL, options=("--docs", "https://docs.test/x/"))
    assert "https://docs.test/x/guide/4-the-plan.md#what-goes-where" in elsewhere.outer_links()
    words = ["explain", "--bundle", str(tmp_path / "b"), "--html", str(tmp_path / "x")]
    assert main([*words, "--docs", "javascript:alert(1)"]) == 2
    assert capsys.readouterr().err.startswith(
        "nvgraft explain: --docs javascript:alert(1): not an address of pages | "
    )


def test_a_page_without_a_plan_has_no_tree(tmp_path: Path) -> None:
    """A page without a plan has no tree, and ends with the reason."""
    assert "tree" not in [attributes.get("id") for _, attributes in page(tmp_path, code=0).tags]
    refused = page(tmp_path, "NVIDIA_VISIBLE_DEVICES=7", code=1)
    assert "tree" not in [attributes.get("id") for _, attributes in refused.tags]
    assert "Does not start" in refused.content["strong"]


def command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run explain as a process of its own, which is confined."""
    command = [sys.executable, "-B", "-m", "nvgraft_cli.shell.main", "explain", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )


def test_the_confined_command_writes_its_page_whole(tmp_path: Path) -> None:
    """The command replaces an older page, leaves no other file, and exits with the child's code."""
    out = tmp_path / "out"
    out.mkdir()
    file = out / "page.html"
    file.write_text("old")
    bundle = str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=7"))
    done = command_line("--bundle", bundle, "--host", "eks-t4", "--html", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert file.read_text().endswith("</body>\n</html>\n")
    assert list(out.iterdir()) == [file]


def test_a_failure_leaves_the_old_page(tmp_path: Path) -> None:
    """A bad host and an unwritable file are one line and exit 2, and the old page stays."""
    file = tmp_path / "page.html"
    file.write_text("old")
    bundle = str(make_bundle(tmp_path / "b", ALL))
    done = command_line("--bundle", bundle, "--host", str(file), "--html", str(file))
    assert (done.returncode, done.stdout, file.read_text()) == (2, "", "old")
    assert done.stderr.count("\n") == 1
    done = command_line(
        "--bundle", bundle, "--host", "eks-t4", "--html", str(tmp_path / "none/page.html")
    )
    assert (done.returncode, done.stdout) == (2, "")
    error = f"nvgraft explain: {tmp_path}/none/page.html: cannot be written: no such file or dir"
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1
