"""Find what a supervisor starts: the commands of its configuration in the image."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from nvgraft_cli.prove.start.options import split_words

#: Returns the text of a file of the image, None if there is none.
ReadText = Callable[[str], str | None]
#: Returns the names in a directory of the image, sorted; none if there is no such directory.
ListNames = Callable[[str], list[str]]

#: Supervisors whose configuration is not read here.
_OTHERS = {
    *("systemd", "init", "cron", "crond", "circusd", "pm2", "pm2-runtime", "monit", "honcho"),
    *("s6-supervise", "s6-linux-init", "s6-rc-init", "s6-overlay-suexec", "execlineb", "runit"),
    *("runit-init", "openrc", "openrc-init", "goreman", "overmind", "multirun"),
}
#: Where s6-overlay is, and its services: of version 2, and of version 3 with a type beside each.
_S6_OVERLAY = ("/etc/s6", "/etc/s6-overlay", "/package/admin")
_S6_SERVICES = ("/etc/services.d", "/etc/s6-overlay/s6-rc.d")
_SUPERVISORD = ("/etc/supervisord.conf", "/etc/supervisor/supervisord.conf")
_VARIABLE = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^,\s]*))")
_EXPANSION = re.compile(r"%\((\w+)\)s|%%")
#: Programs of services that use no GPU: of several services the other one is the program.
_WITHOUT_GPU = {
    *("sleep", "tail", "cat", "sshd", "nginx", "cron", "crond", "rsyslogd", "syslogd", "socat"),
    *("dbus-daemon", "redis-server", "memcached", "haproxy", "caddy", "httpd", "apache2", "squid"),
    *("php-fpm", "postgres", "mysqld", "mariadbd", "mongod", "fluent-bit", "filebeat", "vector"),
    *("tailscaled", "dockerd", "containerd", "avahi-daemon", "logrotate", "stunnel", "tinyproxy"),
}
#: The most services, and files of a configuration, that are read.
_MOST = 64


@dataclass(frozen=True, slots=True)
class Service:
    """A command that a supervisor starts.

    :ivar environment: variables that it gets beside those of the supervisor.
    :ivar user: the name of its user; "" for the supervisor's own.
    """

    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    directory: str = ""


def services_of(
    words: list[str], path: str, environment: Mapping[str, str], read: ReadText, names: ListNames
) -> list[Service] | None:
    """Return what a supervisor starts; None for every other program.

    The list is empty where its configuration is not known. Of several services, those are left out
    of which the program is known to use no GPU.

    :param words: its command; ``path`` is that of the program.
    """
    found = _services(words, path, environment, read, names)
    if found is None or len(found) < 2:
        return found
    return [one for one in found if posixpath.basename(one.words[0]) not in _WITHOUT_GPU]


def _services(
    words: list[str], path: str, environment: Mapping[str, str], read: ReadText, names: ListNames
) -> list[Service] | None:
    name = posixpath.basename(words[0])
    if path == "/init":
        if not any(names(place) for place in _S6_OVERLAY):
            return None
        found = [service for place in _S6_SERVICES for service in _in_directory(place, read, names)]
        return [*found, Service(words[1:])] if words[1:] else found
    if name in {"s6-svscan", "runsvdir"}:
        return list(_in_directory(words[-1], read, names)) if len(words) > 1 else []
    if name == "supervisord":
        return _of_supervisord(words[1:], environment, read, names)
    return [] if name in _OTHERS else None


def _in_directory(place: str, read: ReadText, names: ListNames) -> Iterator[Service]:
    for name in names(place)[:_MOST]:
        directory = posixpath.join(place, name)
        files = names(directory)
        if name[:1] != "." and "run" in files and "down" not in files:
            kind = (read(posixpath.join(directory, "type")) or "longrun").strip()
            if kind == "longrun":
                yield Service([posixpath.join(directory, "run")], directory=directory)


def _of_supervisord(
    words: list[str], environment: Mapping[str, str], read: ReadText, names: ListNames
) -> list[Service]:
    file = ""
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in {"-c", "--configuration"}:
            file = value if equals else "".join(words[number + 1 : number + 2])
        elif word.startswith("-c"):
            file = word[2:]
    for place in [file] if file else _SUPERVISORD:
        text = read(place)
        if text is not None:
            return list(_of_configuration(text, place, environment, read, names))
    return []


def _of_configuration(
    text: str, place: str, environment: Mapping[str, str], read: ReadText, names: ListNames
) -> Iterator[Service]:
    import configparser  # few images have a supervisor

    parser = configparser.RawConfigParser(strict=False, inline_comment_prefixes=(";",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    here = posixpath.dirname(place)
    try:
        parser.read_string(text)
        for pattern in parser.get("include", "files", fallback="").split()[:_MOST]:
            for path in _matching(posixpath.join(here, pattern), names):
                parser.read_string(read(path) or "")
    except configparser.Error:
        return
    common = _variables(parser.get("supervisord", "environment", fallback=""))
    for section in parser.sections()[:_MOST]:
        kind, _, name = section.partition(":")
        options = dict(parser.items(section))
        if kind != "program" or options.get("autostart", "true").lower() in {"false", "no", "0"}:
            continue
        values = {f"ENV_{key}": value for key, value in environment.items()}
        values |= {"here": here, "program_name": name}
        known = {key: _expanded(value, values) for key, value in options.items()}
        command = split_words(known.get("command", ""))
        if command:
            own = _variables(known.get("environment", ""))
            user, directory = known.get("user", ""), known.get("directory", "")
            yield Service(command, {**common, **own}, user, directory)


def _variables(text: str) -> dict[str, str]:
    return {match[1]: match[2] or match[3] or match[4] or "" for match in _VARIABLE.finditer(text)}


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return _EXPANSION.sub(lambda match: values.get(match[1], "") if match[1] else "%", text)


def _matching(pattern: str, names: ListNames) -> Iterator[str]:
    directory, name = posixpath.split(pattern)
    for found in names(directory)[:_MOST]:
        if fnmatchcase(found, name):
            yield posixpath.join(directory, found)
