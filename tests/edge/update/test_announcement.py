from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_edge.update.announcement import Announcement, decode, encode
from gatewise_edge.update.errors import UpdateError
from gatewise_export.bundle.signing import MANIFEST_CONTEXT, PublicKey, Signer, write_signatures

GOOD = Announcement("small", "8", 5, "ab" * 32, 1000, "https://example.org/small-8.gwb")


def reason(payload, key, **how):
    with pytest.raises(UpdateError) as caught:
        decode(payload, key, **how)
    return caught.value.reason


def test_it_comes_back(keys):
    payload = encode(GOOD, Signer(keys.key))
    assert decode(payload, PublicKey(keys.pub), name="small") == GOOD
    assert payload.decode().startswith("gatewise signature 1\ned25519 ")


def test_another_name_is_refused(keys):
    payload = encode(GOOD, Signer(keys.key))
    assert reason(payload, PublicKey(keys.pub), name="large") == "other-name"


def test_forged_ones_are_refused(keys):
    key = PublicKey(keys.pub)
    assert reason(encode(GOOD, Signer(keys.other)), key) == "forged"
    head, body = encode(GOOD, Signer(keys.key)).split(b"\n\n")
    assert reason(head + b"\n\n" + body.replace(b'"serial": 5', b'"serial": 6'), key) == "forged"


def test_a_manifests_signature_is_none_of_an_announcement(keys):
    body = encode(GOOD, Signer(keys.key)).split(b"\n\n")[1]
    replayed = write_signatures(Signer(keys.key).sign(MANIFEST_CONTEXT, body)) + b"\n" + body
    assert reason(replayed, PublicKey(keys.pub)) == "forged"


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused(keys, at, bit):
    payload = bytearray(encode(GOOD, Signer(keys.key)))
    payload[at % len(payload)] ^= 1 << bit
    assert reason(bytes(payload), PublicKey(keys.pub)) in ("forged", "malformed")


@settings(max_examples=100, deadline=None)
@given(payload=st.binary(max_size=400))
def test_any_bytes_are_refused(keys, payload):
    assert reason(payload, PublicKey(keys.pub)) == "malformed"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"serial": 0}, "serial"),
        ({"serial": 1 << 53}, "serial"),
        ({"serial": True}, "serial"),
        ({"size": 0}, "size"),
        ({"sha256": "AB" * 32}, "sha256"),
        ({"sha256": "ab"}, "sha256"),
        ({"url": "http://example.org/x"}, "url"),
        ({"url": "https://exa\nmple.org/x"}, "url"),
        ({"name": "a/b"}, "model name"),
        ({"version": "#"}, "model version"),
        ({"announcement": 2}, "announcement"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_fields_out_of_range_are_refused_although_they_are_signed(keys, change, why):
    signer = Signer(keys.key)
    fields = {"announcement": 1, **vars(GOOD), **change}
    body = json.dumps(fields).encode()
    payload = (
        write_signatures(signer.sign(b"gatewise announcement signature, version 1\0", body))
        + b"\n"
        + body
    )
    with pytest.raises(UpdateError, match=why) as caught:
        decode(payload, signer.public)
    assert caught.value.reason == "malformed"


def test_a_large_payload_is_refused_unread(keys):
    assert reason(b"x" * 10_000, PublicKey(keys.pub)) == "malformed"
