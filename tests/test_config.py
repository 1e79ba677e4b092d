"""The configuration: what it makes of a file, and the one line that it says of a mistake."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path

import msgspec
import msgspec.inspect
import pytest

from lmwarden import config as module
from lmwarden.config import ConfigError, EngineUrl, Flag, is_loopback, load, load_storage, parse_engine_url
from lmwarden.types import MOST_WAIT_S

ATTACH = '[models.engine]\nattach = ["http://127.0.0.1:8000"]\n'
ENGINE = '[[models]]\nname = "m"\n' + ATTACH


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lmwarden.toml"
    path.write_text(text, encoding="utf-8")
    return path


def mistake(path: Path | None, *flags: Flag) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, flags)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_apply_under_what_the_file_says(tmp_path: Path) -> None:
    config = load(write(tmp_path, "[client]\nport = 9000\n" + ENGINE))
    assert (config.client.host, config.client.port) == ("127.0.0.1", 9000)
    assert config.console.port == 8081
    assert config.models[0].name == "m"
    settings = config.models[0].routing.settings()
    assert (settings.affinity, settings.placement, settings.spill_threshold) == (True, "least-loaded", None)
    assert settings.live_s == 1800
    assert (settings.admission, settings.prefer, settings.max_wait_s) == ("auto", "balanced", 240)
    # Who waited as long as may be set is answered, or told, while its client still listens (about 297 s).
    assert MOST_WAIT_S + 20 <= config.client.stream_silence_s < 297


def test_routing_settings_of_one_model_do_not_reach_the_next(tmp_path: Path) -> None:
    other = '[[models]]\nname = "n"\n[models.engine]\nattach = ["http://127.0.0.1:8001"]\n'
    path = write(tmp_path, ENGINE + "[models.routing]\nspill_threshold = 3\naffinity = false\n" + other)
    first, second = load(path).models
    assert first.routing.settings().spill_threshold == 3
    assert second.routing.settings().spill_threshold is None
    assert second.routing.affinity


def test_every_default_has_its_reason() -> None:
    text = resources.files("lmwarden").joinpath("defaults.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)
    for line in text.splitlines():
        if re.match(r"\w+ = ", line) and not line.startswith(("port", "aliases")):
            assert "#" in line, line


def test_flags_win_over_the_file_and_are_named_in_errors(tmp_path: Path) -> None:
    path = write(tmp_path, "[client]\nport = 9000\n" + ENGINE)
    assert load(path, [Flag("--port", ("client", "port"), 9001)]).client.port == 9001
    assert mistake(path, Flag("--port", ("client", "port"), 70000)) == (
        "--port: must be an integer from 0 to 65535, not 70000"
    )
    engine = Flag("--engine", ("models",), [{"engine": {"attach": ["http://e:1"]}}])
    ranks = Flag("--data-parallel-size", ("models", 0, "engine", "data_parallel_size"), 2)
    assert load(None, [engine, ranks]).models[0].engine.data_parallel_size == 2


def test_a_flag_does_not_hide_a_mistake_in_the_file(tmp_path: Path) -> None:
    port = Flag("--port", ("client", "port"), 9001)
    engine = Flag("--engine", ("models",), [{"engine": {"attach": ["http://e:1"]}}])
    folder = Flag("--data-dir", ("storage", "dir"), "/d")
    for text, flag, says in (
        ('[client]\nport = "8080"\n' + ENGINE, port, "client.port: must be an integer from 0 to 65535, not '8080'"),
        ("client = 3\n" + ENGINE, port, "client: must be a table"),
        ("models = 3\n", engine, "models: expected [[models]] tables"),
        ('[[models]]\nname = ""\n' + ATTACH, engine, "models[0].name: must be a text of 1 to 256"),
    ):
        path = write(tmp_path, text)
        assert mistake(path, flag).startswith(f"{path}: {says}")
    path = write(tmp_path, "[storage]\ndir = 3\n")
    with pytest.raises(
        ConfigError, match=r"lmwarden\.toml: storage\.dir: must be a text of 1 to 4096 characters, not 3"
    ):
        load_storage(path, [folder])


def test_every_number_has_a_largest_value() -> None:
    """So none is infinite, or too large for what it is given to: a timer, a column of SQLite."""
    numbers = (msgspec.inspect.IntType, msgspec.inspect.FloatType)
    seen = 0
    for table in module._TABLES.values():
        info = msgspec.inspect.type_info(table)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            kinds = [*getattr(field.type, "types", [field.type]), getattr(field.type, "item_type", None)]
            for kind in kinds:
                if isinstance(kind, numbers):
                    seen += 1
                    assert kind.le is not None, (table, field.name)
                    assert kind.ge is not None or kind.gt is not None, (table, field.name)
    assert seen > 30


def test_flags_are_not_changed_by_other_flags() -> None:
    engine = Flag("--engine", ("models",), [{"engine": {"attach": ["http://e:1"]}}])
    load(None, [engine, Flag("--max-num-seqs", ("models", 0, "engine", "max_num_seqs"), 3)])
    assert engine.value == [{"engine": {"attach": ["http://e:1"]}}]


def test_an_engine_from_the_command_line_is_blamed_there() -> None:
    def flags(*urls: str) -> Flag:
        return Flag("--engine", ("models",), [{"engine": {"attach": list(urls)}}])

    assert mistake(None, flags("nonsense")).startswith("--engine: 'nonsense': expected http://host:port")
    assert mistake(None, flags("http://h", "http://h:80")) == (
        "--engine: http://h:80 is given twice; an engine serves one model here"
    )


def test_a_mistake_is_blamed_where_the_key_was_given(tmp_path: Path) -> None:
    engine = Flag("--engine", ("models",), [{"engine": {"attach": ["http://e:1"]}}])
    config = load(None, [engine])
    assert config.engine_place(0, "data_parallel_size") == "--data-parallel-size"
    path = write(tmp_path, "[client]\nport = 9000\n" + ENGINE)
    assert load(path).engine_place(0, "model") == f"{path}: models[0].engine.model"
    origin = load(path, [Flag("--host", ("client", "host"), "::1")]).origin
    assert origin.place("client", "host") == "--host"
    assert origin.place("client", "port", default="--port") == f"{path}: client.port"
    assert origin.place("console", "port", default="--console-port") == "--console-port"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[client]\nprot = 1\n" + ENGINE, "client.prot: unknown key; allowed here: host, port, tls_cert"),
        ("[clients]\nport = 1\n" + ENGINE, "clients: unknown key; allowed here: client, console"),
        ("client = 3\n" + ENGINE, "client: must be a table"),
        ('[client]\nport = "x"\n' + ENGINE, "client.port: must be an integer from 0 to 65535, not 'x'"),
        ('[client]\nrequire_key = "no"\n' + ENGINE, "client.require_key: must be true or false or \"auto\", not 'no'"),
        (
            "[client]\nmax_body_bytes = 0\n" + ENGINE,
            "client.max_body_bytes: must be an integer from 1 to 1000000000000000",
        ),
        ("[watch]\ninterval_s = 0\n" + ENGINE, "watch.interval_s: must be a number above 0, at most 5, not 0"),
        ("[watch]\ninterval_s = 45\n" + ENGINE, "watch.interval_s: must be a number above 0, at most 5, not 45"),
        ("[watch]\nprobe_timeout_s = inf\n" + ENGINE, "watch.probe_timeout_s: must be a number above 0, at most 86400"),
        ("[client]\ndrain_s = inf\n" + ENGINE, "client.drain_s: must be a number from 0 to 86400, not inf"),
        (
            "[storage]\nretention_days = nan\n" + ENGINE,
            "storage.retention_days: must be a number above 0, at most 36500",
        ),
        ('[storage]\ndir = ""\n' + ENGINE, "storage.dir: must be a text of 1 to 4096 characters, not ''"),
        ('[client]\ntls_cert = "a"\n' + ENGINE, "client.tls_cert, client.tls_key: give both or none"),
        ("[client]\nmax_buffered_bytes = 5\n" + ENGINE, "client.max_buffered_bytes: must be at least max_body_bytes"),
        ('[client]\nsession_headers = ["a b"]\n' + ENGINE, "client.session_headers: 'a b' is not a header name"),
        ("[console]\npassword_file = 3\n" + ENGINE, "console.password_file: must be a text of 1 to 256 characters"),
        ("", "models: no engine given; use --engine URL, or [[models]] with [models.engine] attach or launch"),
        ("models = 3\n", "models: expected [[models]] tables"),
        ('[[models]]\nname = "m"\n', "models[0].engine: give attach or launch: attach = ["),
        (
            "[[models]]\n[models.engine]\nattach = []\n",
            "models[0].engine.attach: must be a list of one or more texts, not []",
        ),
        ('[[models]]\n[models.engine]\nattach = ["x"]\n', "models[0].engine.attach: 'x': expected http://"),
        (ENGINE + '[models.routing]\nplacement = "r"\n', 'models[0].routing.placement: must be "hash" or "least-'),
        (
            ENGINE + '[models.routing]\nadmission = "on"\n',
            'models[0].routing.admission: must be "auto" or "off", not \'on\'',
        ),
        (
            ENGINE + '[models.routing]\nprefer = "mean"\n',
            'models[0].routing.prefer: must be "balanced" or "median" or "tail", not \'mean\'',
        ),
        (
            ENGINE + "[models.routing]\nmax_wait_s = 300\n",
            "models[0].routing.max_wait_s: must be a number from 1 to 270, not 300",
        ),
        (ENGINE + ENGINE.replace('name = "m"', ""), "models[1].engine.attach: http://127.0.0.1:8000 is given twice"),
        (ENGINE + ENGINE.replace("8000", "8001"), "models[1].name: 'm' is given twice"),
        ("[client\n", "not valid TOML"),
        (
            '[[models]]\n[models.engine]\nattach = "http://h:1"\n',
            "models[0].engine.attach: must be a list of one or more texts, e.g. [\"http://h:1\"], not 'http://h:1'",
        ),
        (
            '[[models]]\naliases = [""]\n' + ATTACH,
            "models[0].aliases[0]: must be a text of 1 to 256 characters, not ''",
        ),
        ('[[models]]\naliases = "a"\n' + ATTACH, "models[0].aliases: must be a list of texts, e.g. [\"a\"], not 'a'"),
        ('[[models]]\nname = "a*"\n' + ATTACH, "models[0].name: 'a*' looks like a pattern; patterns go into aliases"),
        ('[client]\nhost = ""\n' + ENGINE, "client.host: must be a text of 1 to 256 characters, not ''"),
        ('[client]\nhost = "foo..bar"\n' + ENGINE, "client.host: 'foo..bar' is not the name or address of a host"),
        (f'[console]\nhost = "{"x" * 70}"\n' + ENGINE, "console.host: 'xxx"),
        ('[client]\nsession_headers = ["Host"]\n' + ENGINE, "client.session_headers: 'Host' does not tell sessions"),
        (
            '[console]\nallowed_hosts = ["https://w.example"]\n' + ENGINE,
            "console.allowed_hosts: 'https://w.example' is not the name or address of a host; give it alone, without",
        ),
        ('[console]\nallowed_hosts = ["w.example:443"]\n' + ENGINE, "'w.example:443' is not the name or address"),
        ('[console]\nallowed_hosts = ["cafe:8081"]\n' + ENGINE, "'cafe:8081' is not the name or address"),
        ('[console]\nallowed_hosts = ["[::1]"]\n' + ENGINE, "'[::1]' is not the name or address of a host"),
        ('[[models]]\nname = "a\\nb"\n' + ATTACH, "models[0].name: 'a\\nb' must be printable characters"),
        ('[[models]]\naliases = ["a\\u0007"]\n' + ATTACH, "models[0].aliases: 'a\\x07' must be printable characters"),
        (
            ENGINE + '[[models]]\nname = "n"\naliases = ["x*", "m"]\n' + ATTACH.replace("8000", "8001"),
            "models[1].aliases: 'm' already stands for models[0]; names must differ",
        ),
        (
            '[[models]]\naliases = ["n"]\n' + ATTACH + '[[models]]\nname = "n"\n' + ATTACH.replace("8000", "8001"),
            "models[0].aliases: 'n' already stands for models[1]; names must differ",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_file_key_and_what_is_allowed(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    said = mistake(path)
    assert said.startswith(f"{path}: ")
    assert says in said


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in mistake(tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in mistake(binary)


def test_storage_alone_needs_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_storage(write(tmp_path, '[storage]\ndir = "/d"\n'))[0].path == Path("/d")
    with pytest.raises(ConfigError, match=r"storage\.foo: unknown key; allowed here: dir, retention_days"):
        load_storage(write(tmp_path, "[storage]\nfoo = 1\n"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert load_storage()[0].path == tmp_path / "lmwarden"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h:8000", EngineUrl("h", 8000, "", False)),
        ("http://h:8000/v1/", EngineUrl("h", 8000, "", False)),
        ("https://h/vllm/", EngineUrl("h", 443, "/vllm", True)),
        ("http://[::1]:1", EngineUrl("::1", 1, "", False)),
    ],
)
def test_engine_urls(text: str, url: EngineUrl) -> None:
    assert parse_engine_url(text) == url


@pytest.mark.parametrize(
    "text",
    ["h:8000", "ftp://h", "http://", "http://h:x", "http://h?a=1", "http://u:p@h", "http://h\n", "http://a..b:1"],
)
def test_engine_urls_of_other_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="expected http://host:port"):
        parse_engine_url(text)


def test_nothing_is_recorded_unless_somebody_says_so(tmp_path: Path) -> None:
    usual = load(write(tmp_path, ENGINE)).ledger
    assert (usual.prefix_analysis, usual.record_traces) == (True, False)
    wanted = load(write(tmp_path, "[ledger]\nrecord_traces = true\nprefix_analysis = false\n" + ENGINE)).ledger
    assert (wanted.prefix_analysis, wanted.record_traces) == (False, True)
    assert "ledger.record_traces: must be true or false" in mistake(
        write(tmp_path, "[ledger]\nrecord_traces = 1\n" + ENGINE)
    )


def test_keys_are_required_unless_bound_to_loopback(tmp_path: Path) -> None:
    def required(client: str) -> bool:
        return load(write(tmp_path, f"[client]\n{client}\n" + ENGINE)).client.key_required

    assert not required('host = "127.0.0.1"')
    assert required('host = "0.0.0.0"')
    assert not required('host = "0.0.0.0"\nrequire_key = false')
    assert required("require_key = true")


def test_loopback_hosts() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost", "LOCALHOST"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.evil"))
    # As a socket for both families shows its peers.
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("::ffff:10.0.0.1")


def test_an_engine_key_comes_from_a_file_and_never_shows(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    path = write(tmp_path, ENGINE + f'api_key_file = "{key_file}"\n')
    place = f"{path}: models[0].engine.api_key_file: {key_file}"
    assert mistake(path) == f"{place}: No such file or directory"
    key_file.write_text("two words\n", encoding="utf-8")
    assert mistake(path) == f"{place}: must hold one key in printable ASCII"
    key_file.write_bytes(b"\xff")
    assert mistake(path) == f"{place}: not text"
    key_file.write_text("sk-1\n", encoding="utf-8")
    config = load(path)
    assert config.models[0].engine.api_key() == "sk-1"
    assert "sk-1" not in repr(config)


def test_a_key_file_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for text in ("~/key", "key"):
        assert f": {tmp_path}/key: No such file" in mistake(write(tmp_path, ENGINE + f'api_key_file = "{text}"\n'))


def test_names_of_one_model_may_repeat_and_hosts_have_many_forms(tmp_path: Path) -> None:
    hosts = ["Warden.example.org", "10.0.0.7", "fd00::7", "::ffff:10.0.0.7", "my_host-2"]
    text = f'[console]\nallowed_hosts = {hosts}\n[[models]]\nname = "m"\naliases = ["m", "s", "s", "x*"]\n' + ATTACH
    text += '[[models]]\nname = "n"\naliases = ["x*"]\n' + ATTACH.replace("8000", "8001")
    config = load(write(tmp_path, text))
    assert config.console.allowed_hosts == tuple(hosts)
    assert [model.aliases for model in config.models] == [("m", "s", "s", "x*"), ("x*",)]
