"""The settings of connections: a proxy, setup timeouts, unused connections."""

from __future__ import annotations

import pickle

import pytest

from pykaproducer._config.network import Proxy
from pykaproducer.config import Config, shown_settings
from pykaproducer.errors import ConfigurationError

SECRET = "hush-hush"


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("socks5://proxy", Proxy("socks5", "proxy", 1080)),
        ("socks5h://proxy:1/", Proxy("socks5h", "proxy", 1)),
        ("HTTP://Proxy", Proxy("http", "proxy", 80)),
        (" http://10.0.0.1:3128 ", Proxy("http", "10.0.0.1", 3128)),
        ("http://[::1]:3128", Proxy("http", "::1", 3128)),
        ("socks5://a%40b:c%3Ad@h:9", Proxy("socks5", "h", 9, "a@b", "c:d")),
        ("http://token@h:9", Proxy("http", "h", 9, "token", "")),
    ],
)
def test_the_urls_of_proxies(url: str, proxy: Proxy) -> None:
    config = Config.from_kwargs({"proxy_url": url})
    assert config.proxy_url == proxy
    assert Config.from_kwargs({"socks5_proxy": url}).proxy_url == proxy
    assert Config.from_kwargs({"proxy.url": url}).proxy_url == proxy
    assert pickle.loads(pickle.dumps(config)).proxy_url == proxy


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("proxy:1080", "it has no scheme; choose one of socks5://, socks5h://, http://"),
        (f"user:{SECRET}@proxy:1080", "it has no scheme"),
        (f"https://user:{SECRET}@proxy", "the scheme https:// is not supported; choose one of"),
        (f"socks4://user:{SECRET}@proxy", "the scheme socks4:// is not supported"),
        (f"http://user:{SECRET}", "its host or port is malformed"),
        (f"http://user:{SECRET}@proxy:x", "its host or port is malformed"),
        (f"http://user:{SECRET}@[::1", "its host or port is malformed"),
        (f"http://user:{SECRET}@proxy:99999", "its host or port is malformed"),
        (f"http://user:{SECRET}@", "it has no valid host name"),
        (f"http://user:{SECRET}@pro xy", "it has no valid host name"),
        (f"http://user:a/{SECRET}@proxy", "malformed|something follows the port"),
        (f"http://user:a#{SECRET}@proxy", "malformed|something follows the port"),
        (f"http://proxy/{SECRET}", "something follows the port; quote special characters"),
        (f"http://:{SECRET}@proxy", "its user name is empty"),
        (f"http://a%3Ab:{SECRET}@proxy", "its user name contains a colon"),
        (f"http://user:{SECRET}\udcff@proxy", "its user name or password is not valid Unicode"),
        (f"http://{SECRET}\udcff@proxy", "its user name or password is not valid Unicode"),
        (f"socks5://user:{SECRET}\udcff@proxy", "its user name or password is not valid Unico"),
        ("socks5://user@proxy", "it has a user name without a password"),
        (f"socks5://user:{SECRET * 50}@proxy", "its user name or password is longer than 255"),
        (5, "allowed: a URL socks5://host:port"),
        ("", "it has no scheme"),
    ],
)
@pytest.mark.parametrize("name", ["proxy_url", "socks5_proxy"])
def test_a_wrong_url_is_refused_without_its_password(name: str, url: object, text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"setting {name}: a value that is not shown was "
    ) as caught:
        Config.from_kwargs({name: url})
    assert SECRET not in str(caught.value)
    assert caught.match(text)
    assert caught.value.__cause__ is None
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__context__


def test_the_password_is_not_shown() -> None:
    config = Config.from_kwargs({"proxy_url": f"http://user:{SECRET}@proxy"})
    assert config.proxy_url is not None
    assert config.proxy_url.password == SECRET
    shown = f"{config!r} {config.proxy_url!r} {config.proxy_url} {shown_settings(config)}"
    assert SECRET not in shown
    assert "proxy_url=<not shown>" in shown


def test_two_proxies() -> None:
    given = {"proxy_url": "http://one", "socks5_proxy": "socks5://two"}
    with pytest.raises(ConfigurationError, match="socks5_proxy and proxy_url have conflicting"):
        Config.from_kwargs(given)
    assert Config.from_kwargs({**given, "socks5_proxy": "http://one:80"}).proxy_url is not None


def test_the_maximum_of_the_setup_timeout_is_not_below_it() -> None:
    config = Config.from_kwargs({"socket.connection.setup.timeout.ms": "40000"})
    assert config.socket_connection_setup_timeout_ms == 40_000
    assert config.socket_connection_setup_timeout_max_ms == 40_000
    with pytest.raises(ConfigurationError, match=r"allowed: a number of milliseconds from 1 to"):
        Config.from_kwargs({"socket_connection_setup_timeout_ms": 0})


def test_the_maximum_of_the_pause_between_requests_for_a_token_is_not_below_the_first() -> None:
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": "https://127.0.0.1/token",
        "sasl_oauthbearer_client_id": "alice",
        "sasl_oauthbearer_client_secret": "secret",
        "sasl_login_retry_backoff_ms": 20_000,
    }
    assert Config.from_kwargs(settings).sasl_login_retry_backoff_max_ms == 20_000
    with pytest.raises(ConfigurationError, match="setting sasl_login_retry_backoff_ms: "):
        Config.from_kwargs({"sasl_login_retry_backoff_ms": 20_000})


def test_the_defaults_are_below_the_idle_timeouts_of_clouds() -> None:
    config = Config.from_kwargs({})
    assert config.connections_max_idle_ms < 240_000
    assert 0 < config.connections_check_idle_ms < config.connections_max_idle_ms
    assert 0 < config.tcp_user_timeout_ms < config.request_timeout_ms
