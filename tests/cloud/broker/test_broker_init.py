"""Files that the first and later calls of `gatewise broker init` write."""

from __future__ import annotations

import datetime
import json
import os
import resource
import shutil
import ssl
import stat
from types import SimpleNamespace

import pytest
from cryptography import x509

from gatewise.errors import InputError
from gatewise_cloud.broker.authority import Authority, host_names, read_certificate
from gatewise_cloud.broker.broker_init import init_broker
from gatewise_export.bundle.bundle import Bundle
from tests.support.processes import run_in_process

DAY = datetime.timedelta(days=1)


def read_files(folder):
    """Read the content of each file that has a suffix."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def broker_folder(tmp_path_factory):
    """A folder that one call has written; tests must not change it."""
    hosts = ["broker.example", "192.0.2.1"]
    return init_broker(tmp_path_factory.mktemp("made") / "b", hosts=hosts, devices=["pi-1"])


@pytest.fixture
def folder(broker_folder, tmp_path):
    """A copy of the broker's folder that a test may change."""
    return shutil.copytree(broker_folder.folder, tmp_path / "copy")


def test_a_folder_has_certificates_configuration_and_rights(broker_folder):
    roster = broker_folder.roster
    assert (roster.devices, roster.workers, roster.operators) == (
        ("pi-1",), ("worker-1",), ("operator",),
    )  # fmt: skip
    folder = broker_folder.folder
    for key in folder.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key
    assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o700
    server_certificate = read_certificate(folder / "server.crt")
    names = server_certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.1"]
    authority = read_certificate(folder / "ca.crt")
    for path in (folder / "server.crt", *(folder / "clients").glob("*.crt")):
        certificate = read_certificate(path)
        certificate.verify_directly_issued_by(authority)
        assert certificate.not_valid_after_utc <= authority.not_valid_after_utc
        validity = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert 300 * DAY < validity < 1000 * DAY  # 397 days of the server, 825 of the clients
        # OpenSSL loads a certificate only with its matching key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, path.with_suffix(".key"))
    config = (folder / "mosquitto.conf").read_text().splitlines()
    assert {
        "per_listener_settings true",
        "require_certificate true",
        "use_identity_as_username true",
        "allow_anonymous false",
        "set_tcp_nodelay true",
        "persistence true",
        "autosave_interval 1",
        "message_size_limit 131072",
        "use_username_as_clientid true",
        "persistent_client_expiration 1h",
        "max_connections 1000",
        "max_queued_messages 4096",
        "max_queued_bytes 8388608",
        f"plugin {broker_folder.plugin}",
        f"plugin_opt_config_file {folder.resolve()}/rights.json",
    } <= set(config)
    for name in ("acl", "rights.json", "roster.json", "clients/pool"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name


def test_the_pool_keeps_its_random_name(broker_folder, folder, tmp_path):
    other_folder = init_broker(tmp_path / "other", hosts=["x"])
    assert broker_folder.roster.pool != other_folder.roster.pool
    pool = broker_folder.roster.pool
    assert len(pool) >= 32  # 128 random bits in hexadecimal digits
    assert (broker_folder.folder / "clients" / "pool").read_text().strip() == pool
    assert broker_folder.worker_arguments("worker-1")["pool"] == pool
    assert init_broker(folder).roster.pool == pool


@pytest.mark.parametrize(
    ("settings", "lines", "absent_prefix"),
    [
        ({"plugin": "none"}, ["acl_file /there/acl", "memory_limit 402653184"], "plugin"),
        ({"plugin": "/lib/x.so"}, ["plugin /lib/x.so", "acl_file /there/acl"], "memory_limit"),
        ({}, ["acl_file /there/acl"], "plugin"),  # the plugins of the other machine are unknown
        # a packet has up to 1,024 bytes in addition to its payload
        ({"max_message": 5000}, ["message_size_limit 5000", "max_packet_size 6024"], "plugin"),
        ({"bind_ids": False}, ["use_identity_as_username true"], "use_username_as_clientid"),
        # four connections for each of 300 devices, a worker and an operator
        ({"devices": [f"pi-{i}" for i in range(300)]}, ["max_connections 1208"], "plugin"),
    ],
)
def test_settings_become_lines_of_the_configuration(
    tmp_path, monkeypatch, settings, lines, absent_prefix
):
    monkeypatch.setattr(Authority, "issue_client", lambda self, files, *_: files)
    broker_folder = init_broker(tmp_path, hosts=["x"], at="/there", **settings)
    config = broker_folder.config.read_text().splitlines()
    assert set(lines) <= set(config)
    assert not [line for line in config if line.startswith(absent_prefix)]


def test_a_second_call_adds_clients_and_changes_nothing_else(folder):
    init_broker(folder, port=8884, max_message=65536)
    contents_before = read_files(folder)
    broker_folder = init_broker(folder, devices=["pi-2"], workers=["w-2"])
    assert [path.name for path in broker_folder.issued_certificates] == ["pi-2.crt", "w-2.crt"]
    roster = broker_folder.roster
    assert (roster.devices, roster.workers) == (("pi-1", "pi-2"), ("worker-1", "w-2"))
    assert (roster.port, roster.max_message) == (8884, 65536)
    contents_after = read_files(folder)
    changed_files = {
        name for name, content in contents_before.items() if contents_after[name] != content
    }
    assert changed_files == {"roster.json", "rights.json"}
    assert "user w-2" in (folder / "acl").read_text()


def test_a_second_call_keeps_the_settings_of_the_first(folder):
    first_settings = {"at": "/there", "data": "/data", "plugin": "/x.so", "bind_ids": False}
    init_broker(folder, **first_settings)
    config_before = (folder / "mosquitto.conf").read_text()
    assert init_broker(folder, devices=["pi-2"]).config.read_text() == config_before


def test_the_message_limit_fits_the_largest_request_of_a_bundle(folder, bundle, monkeypatch):
    n_bytes = Bundle.open(bundle).manifest.largest_request
    assert init_broker(folder, bundles=[bundle]).roster.max_message == 131072  # the default
    assert init_broker(folder, max_message=4096, bundles=[bundle]).roster.max_message == 4096
    manifest = SimpleNamespace(largest_request=n_bytes + 4096)
    monkeypatch.setattr(Bundle, "open", lambda _: SimpleNamespace(manifest=manifest))
    assert init_broker(folder, bundles=[bundle]).roster.max_message == n_bytes + 4096
    with pytest.raises(InputError, match=f"needs {n_bytes + 4096} bytes"):
        init_broker(folder, max_message=4096, bundles=[bundle])


def test_a_failed_write_changes_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(Authority, "issue_client", lambda self, files, *_: files)
    folder = init_broker(tmp_path, hosts=["x"], devices=[f"pi-{i}" for i in range(40)]).folder
    private_names = ("acl", "rights.json", "roster.json", "clients/pool")
    contents_before = [(folder / name).read_bytes() for name in private_names]
    # No file may become longer than half of rights.json.
    size_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(contents_before[1]) // 2, size_limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            init_broker(folder, devices=["pi-40"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size_limits)
    assert [(folder / name).read_bytes() for name in private_names] == contents_before
    assert not list(folder.rglob("*.new"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_rewritten_files_keep_their_owner_and_mode(folder):
    os.chown(folder / "rights.json", 1, 1)
    init_broker(folder, devices=["pi-2"])
    file_status = (folder / "rights.json").stat()
    assert (file_status.st_uid, file_status.st_gid) == (1, 1)
    assert stat.S_IMODE(file_status.st_mode) == 0o600


def test_certificates_that_expire_soon_are_renewed(folder):
    # The server's certificate is valid for 397 days, those of clients for 825. Each is renewed in
    # its last 30 days, and the server's when its names change. The calls follow each other.
    now = datetime.datetime.now(datetime.UTC)
    for settings, renewed_names in (
        ({"hosts": ["one.example", "two.example"]}, ["server.crt"]),
        ({}, []),
        ({"clock": lambda: now + 380 * DAY}, ["server.crt"]),
        (
            {"clock": lambda: now + 800 * DAY},
            ["server.crt", "pi-1.crt", "worker-1.crt", "operator.crt"],
        ),
        ({"clock": lambda: now + 800 * DAY}, []),
    ):
        issued_certificates = init_broker(folder, **settings).issued_certificates
        assert [path.name for path in issued_certificates] == renewed_names


def test_a_refused_host_leaves_the_key_of_the_server_certificate(folder):
    key = (folder / "server.key").read_bytes()
    with pytest.raises(InputError, match="host 'bröker' is not a name"):
        init_broker(folder, hosts=["broker.example", "bröker"])
    assert (folder / "server.key").read_bytes() == key


def test_a_server_certificate_without_its_key_is_issued_again(folder):
    shutil.copy(folder / "clients" / "pi-1.key", folder / "server.key")
    broker_folder = init_broker(folder)
    assert [path.name for path in broker_folder.issued_certificates] == ["server.crt"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")


def test_a_host_may_be_longer_than_a_common_name(folder):
    host = f"{'x' * 60}.broker.example"
    init_broker(folder, hosts=[host])
    assert host_names(read_certificate(folder / "server.crt")) == {host}


def test_revoked_clients_are_on_the_revocation_list(folder):
    serial = read_certificate(folder / "clients" / "pi-1.crt").serial_number
    broker_folder = init_broker(folder, revoke=["pi-1"])
    assert broker_folder.roster.devices == ()
    assert not list((folder / "clients").glob("pi-1.*"))
    revocation_list = x509.load_pem_x509_crl((folder / "ca.crl").read_bytes())
    assert [entry.serial_number for entry in revocation_list] == [serial]
    # A revoked name may be added again and then gets a new certificate.
    (certificate_path,) = init_broker(folder, devices=["pi-1"]).issued_certificates
    assert certificate_path.name == "pi-1.crt"


def test_last_operator_is_not_revoked_without_another(folder):
    roster = (folder / "roster.json").read_bytes()
    with pytest.raises(InputError, match="no operator would remain"):
        init_broker(folder, revoke=["operator"])
    assert (folder / "roster.json").read_bytes() == roster
    assert (folder / "clients" / "operator.crt").exists()
    broker_folder = init_broker(folder, revoke=["operator"], operators=["boss"])
    assert broker_folder.roster.operators == ("boss",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hosts": []}, "--host"),
        ({"hosts": ["mqtts://x"]}, "without mqtts"),
        ({"devices": ["a/b"]}, "a/b"),
        ({"devices": ["+"]}, "control character"),
        ({"devices": ["model"]}, "reserved"),
        ({"devices": ["../x"]}, "control character"),
        ({"devices": [".hidden"]}, "begins with neither"),
        ({"devices": ["w\nuser boss"]}, "control character"),
        ({"devices": ["x"], "workers": ["x"]}, "among the devices and the workers"),
        ({"revoke": ["nobody"]}, "not on the roster"),
        ({"run_as": "nobody-of-that-name"}, "no such user"),
    ],
)
def test_init_refuses_invalid_settings(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        init_broker(tmp_path / "b", **({"hosts": ["one.example"]} | settings))


def test_init_refuses_an_authority_without_its_key(folder):
    (folder / "ca.key").unlink()
    with pytest.raises(InputError, match=r"lacks ca\.crt or ca\.key"):
        init_broker(folder)


def test_the_command_prints_the_folder_or_a_json_document(tmp_path):
    folder = tmp_path / "b"
    arguments = ("broker", "init", folder, "--host", "127.0.0.1", "--devices", "pi-1,pi-2")
    process = run_in_process(*arguments, "--json")
    assert (process.returncode, process.stderr) == (0, "")
    document = json.loads(process.stdout)
    assert document["devices"] == ["pi-1", "pi-2"]
    # certificates of the server, two devices, a worker and an operator
    assert len(document["made"]) == 5
    assert document.keys() == {
        "folder", "config", "hosts", "port", "max_message", "plugin", "devices", "workers",
        "operators", "labellers", "made", "revoked", "at", "data", "run_as", "bind_ids",
    }  # fmt: skip
    process = run_in_process(*arguments)
    assert process.returncode == 0
    assert f"mosquitto -c {folder / 'mosquitto.conf'}" in process.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init",), "DIR"),
        (("--devices", "pi-1"), "--devices"),
        (("init", "b", "--host", "x", "--max-message", "3"), "max-message"),
        (("begin",), "begin"),
    ],
)
def test_the_command_refuses_invalid_arguments(arguments, message):
    process = run_in_process("broker", *arguments)
    assert (process.returncode, process.stdout, process.stderr.count("\n")) == (2, "", 1)
    assert message in process.stderr
