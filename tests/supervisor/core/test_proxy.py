"""supervisor/core/proxy.py: which addresses are public, and what a request to a proxy says."""

import base64
import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.proxy import NotUnderstood, is_for_a_proxy, is_public, parse

NOT_PUBLIC = [
    "0.0.0.0",
    "127.0.0.1",
    "127.8.8.8",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fd12::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2001:db8::1",
    "not-an-address",
    "localhost",
    "127.1",
    "0x7f000001",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_nothing_of_this_machine_or_network_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_the_public_web_is(address: str) -> None:
    assert is_public(address)


def test_an_address_of_our_own_is_refused_although_it_is_public() -> None:
    assert not is_public("93.184.216.34", frozenset({"93.184.216.34"}))
    assert not is_public("::ffff:93.184.216.34", frozenset({"93.184.216.34"}))
    assert is_public("93.184.216.35", frozenset({"93.184.216.34"}))


@given(number=st.integers(0, 2**32 - 1), form=st.sampled_from(["{}", "::ffff:{}", "64:ff9b::{}"]))
def test_no_way_of_writing_makes_a_private_address_public(number: int, form: str) -> None:
    address = ipaddress.IPv4Address(number)

    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert not is_public(form.format(address))


def basic(token: str) -> bytes:
    return b"Proxy-Authorization: Basic " + base64.b64encode(f"worker:{token}".encode())


def test_a_tunnel_names_host_and_port() -> None:
    wanted = parse(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n" + basic("t1") + b"\r\n\r\n")

    assert (wanted.host, wanted.port, wanted.tunnel, wanted.token) == ("example.org", 443, True, "t1")
    assert parse(b"CONNECT [2606:4700::1]:443 HTTP/1.1\r\n\r\n").host == "2606:4700::1"


def test_a_plain_request_is_made_anew_without_the_token_for_one_answer() -> None:
    head = b"GET http://example.org:8080/a?b=c HTTP/1.1\r\nHost: example.org\r\nProxy-Connection: keep-alive\r\n"

    wanted = parse(head + basic("t1") + b"\r\nAccept: */*\r\n\r\n")

    assert (wanted.host, wanted.port, wanted.tunnel, wanted.token) == ("example.org", 8080, False, "t1")
    assert wanted.opening == b"GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"CONNECT example.org HTTP/1.1\r\n\r\n",
        b"CONNECT example.org:0 HTTP/1.1\r\n\r\n",
        b"CONNECT example.org:99999 HTTP/1.1\r\n\r\n",
        b"CONNECT :443 HTTP/1.1\r\n\r\n",
        b"CONNECT a:b:443 HTTP/1.1\r\n\r\n",
        b"CONNECT example.org:443\r\n\r\n",
        b"GET https://example.org/ HTTP/1.1\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\n\r\n",
        b"GET http://example.org:x/ HTTP/1.1\r\n\r\n",
        b"GET http://example.org/ HTTP/1.1\r\nno header\r\n\r\n",
        b"GET http://example.org/ HTTP/1.1\r\n folded: x\r\n\r\n",
        "CONNECT münchen.de:443 HTTP/1.1\r\n\r\n".encode(),
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    with pytest.raises(NotUnderstood):
        parse(head)


@given(head=st.binary(max_size=200))
def test_no_bytes_upset_the_parser(head: bytes) -> None:
    with contextlib.suppress(NotUnderstood):
        parse(head)


def test_a_model_call_is_not_for_the_proxy() -> None:
    assert is_for_a_proxy(b"CONNECT x:1 HTTP/1.1\r\n")
    assert is_for_a_proxy(b"GET http://x/ HTTP/1.1\r\n")
    assert not is_for_a_proxy(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert not is_for_a_proxy(b"\x16\x03\x01")
