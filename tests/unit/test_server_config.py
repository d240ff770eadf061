"""The [server] part of a config."""

from __future__ import annotations

import pytest
from specs import simple

from netreplay.address import Address
from netreplay.appliance.config import ServerConfig, load, override, parse_server, require_auth
from netreplay.errors import NotYetError, SpecError


def test_everything_has_a_default_but_auth():
    config = parse_server({})
    assert config == ServerConfig()
    with pytest.raises(SpecError, match=r'server.auth: is missing.*auth = "off"'):
        require_auth(config)


def test_listen_may_be_host_and_port():
    assert parse_server({"listen": "[::1]:9"}).listen == (Address("udp", "::1", 9, ""),)


def test_listen_may_be_several_addresses():
    listen = ["vhost:///tmp/a.sock", "udp://0.0.0.0:0"]
    assert [str(address) for address in parse_server({"listen": listen}).listen] == listen


def test_a_vhost_socket_needs_no_auth():
    require_auth(parse_server({"listen": "vhost:///tmp/a.sock"}))
    with pytest.raises(SpecError, match=r"server\.auth"):
        require_auth(parse_server({"listen": ["vhost:///tmp/a.sock", "127.0.0.1:0"]}))


def test_flags_win_over_the_file():
    config = override(
        parse_server({"auth": "off", "listen": "a:9", "poll": "busy"}), listen=["0.0.0.0:0"], auth=None, poll="adaptive"
    )
    assert ([str(a) for a in config.listen], config.auth, config.poll) == (["udp://0.0.0.0:0"], "off", "adaptive")


@pytest.mark.parametrize(
    ("entries", "path", "complaint"),
    [
        ({"port": 7}, "server.port", "is not known"),
        ({"vhost_clients": 0}, "server.vhost_clients", "0 is not between 1 and 1024"),
        ({"vhost_mode": 660}, "server.vhost_mode", "660 is not a file mode"),
        ({"vhost_mode": "0888"}, "server.vhost_mode", "'0888' is not a file mode"),
        ({"seed": -1}, "server.seed", "-1 is not between 0 and 9223372036854775807"),
        ({"seed": 1.5}, "server.seed", "1.5 is not a whole number"),
        ({"core": "x"}, "server.core", "'x' is not a whole number"),
        ({"listen": []}, "server.listen", "is not one address, nor a list of 1 to 8"),
        ({"listen": ["vhost://x"]}, "server.listen", "a socket's absolute path"),
        ({"listen": "nonsense:x"}, "server.listen", "Port could not be cast"),
        ({"listen": 7}, "server.listen", "7"),
        ({"poll": "lazy"}, "server.poll", "'lazy' is not one of adaptive, busy"),
        ({"auth": "on"}, "server.auth", "the only choice"),
        ({"sessions": 0}, "server.sessions", "0 is not between 1"),
        ({"session_timeout": "soon"}, "server.session_timeout", "'soon' is not a number of seconds"),
        ({"max_datagram": 1199}, "server.max_datagram", "1199 is not 0, nor between 1200 and 8972"),
        ({"max_datagram": 8973}, "server.max_datagram", "8973 is not 0, nor between 1200 and 8972"),
        ({"max_datagram": -1}, "server.max_datagram", "-1 is not 0, nor between 1200 and 8972"),
        ({"max_datagram": 1e3}, "server.max_datagram", "1000.0 is not a whole number"),
        ({"memory": "much"}, "server.memory", "'much' is not a size"),
        ({"threads": 3}, "server.threads", "is not known"),
    ],
)
def test_what_is_wrong_is_named(entries, path, complaint):
    with pytest.raises(SpecError) as caught:
        parse_server(entries)
    assert caught.value.path == path
    assert complaint in str(caught.value)


@pytest.mark.parametrize("size", [0, 1200, 8972])
def test_datagrams_may_be_as_small_and_as_large_as_the_protocol_has_them(size):
    assert parse_server({"max_datagram": size}).max_datagram == size


def test_one_file_holds_spec_and_server(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(simple(more='[server]\nlisten = "127.0.0.1:0"\nauth = "off"\nmemory = "1 GiB"'))
    spec, config = load(path)
    assert list(spec.tables) == ["t"]
    assert (config.listen[0].port, config.memory) == (0, 2**30)


def test_a_key_is_refused_as_not_there_yet():
    with pytest.raises(NotYetError, match="not there yet"):
        load(simple(more='[server]\nkey = "secret"'))
