"""The decision: the order of the checks, and agreement with the recorded reference hook."""

import json

import replay
from nvgraft.request.config import Config
from nvgraft.request.decision import absolute_rootfs, decide


def document(env: list[str], **members: object) -> bytes:
    process = {"env": env}
    return json.dumps(
        {"ociVersion": "1.0.2", "process": process, "root": {"path": "rootfs"}, **members}
    ).encode()


def test_every_recorded_decision_is_reproduced() -> None:
    """Exit code, arguments and the key words of the last line agree for every recorded case."""
    rows = replay.rows()
    assert len(rows) == 1216
    wrong: list[tuple[object, ...]] = []
    for row in rows:
        code, lines, argv = replay.replay(row)
        if (code, replay.plain_argv(argv)) != (row["rc"], replay.plain_argv(row["argv"])):
            wrong.append((row["name"], code, argv))
        recorded = row["stderr"].rstrip("\n").split("\n")[-1]
        # The reference prints nothing for an unknown supported capability; we name the cause.
        if code and recorded and replay.key_words(lines[-1]) != replay.key_words(recorded):
            wrong.append((row["name"], lines, recorded))
    assert wrong == []


def test_every_recorded_mode_line_and_warning_is_reproduced() -> None:
    """Lines that the reference prints before it goes on (mode, ignored requests) are equal."""
    for row in replay.rows():
        recorded = [
            line.partition('msg="')[2].rstrip('"') or line for line in row["stderr"].splitlines()
        ]
        if row["rc"] == 0:
            assert replay.replay(row)[1] == recorded


def test_a_skipped_container_says_why() -> None:
    """A container without a request is skipped; the reason has the variable, and stderr stays
    empty.
    """
    decision = decide(document(["NVIDIA_VISIBLE_DEVICES=void"]), Config(), "/b")
    assert (decision.verdict, decision.log) == ("skip", ())
    assert "NVIDIA_VISIBLE_DEVICES=void" in decision.reason


def test_the_mode_line_survives_the_refusal() -> None:
    """A refused mode is logged before the refusal, as the reference does."""
    decision = decide(document(["NVIDIA_VISIBLE_DEVICES=all"]), Config(runtime_mode="cdi"), "/b")
    assert decision.verdict == "refuse"
    assert decision.log == ("Using requested mode 'cdi'",)
    assert decision.reason.startswith("invoking the NVIDIA Container Runtime Hook directly (e.g.")


def test_request_errors_come_before_the_mode() -> None:
    """An unsupported capability is named even when the mode would be refused as well."""
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=bogus"]
    decision = decide(document(env), Config(runtime_mode="cdi"), "/b")
    assert decision.log == ()
    assert decision.reason.startswith("unsupported capabilities found in 'bogus' (allowed '') | ")


def test_broken_config_json_is_a_refusal_with_the_position() -> None:
    """A truncated config.json is refused with the place where the document ends."""
    decision = decide(document(["A=b"])[:-5], Config(), "/b")
    assert decision.reason.startswith(
        "could not decode OCI spec: unexpected EOF | "
        "config.json: the document is truncated: it ends in line 1"
    )


def test_root_path_becomes_absolute_from_the_working_directory() -> None:
    """root.path is cleaned and counts from the hook's working directory; empty means that
    directory.
    """
    for path, rootfs in {
        "rootfs": "/b/rootfs",
        "./rootfs/": "/b/rootfs",
        "": "/b",
        "/": "/",
        "//c/../d": "/d",
        "../x": "/x",
        "../../../x": "/x",
    }.items():
        assert absolute_rootfs(path, "/b") == rootfs


def test_an_unusable_root_path_is_refused() -> None:
    """A root path with a control character, or longer than the kernel takes, is refused."""
    for path in ("a\0b", "x" * 300, "\udcc0", "y/" * 3000):
        decision = decide(
            document(["NVIDIA_VISIBLE_DEVICES=all"], root={"path": path}), Config(), "/b"
        )
        assert decision.reason.startswith(
            "nvgraft: input error: invalid rootfs directory | root.path in config.json: "
        )
