"""SCRAM-SHA-256: the example of RFC 7677, who is let in and who is not, and what each end refuses of the other."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import AuthenticationError, ConfigError, RemoteProtocolError
from lockstep.runtime.security.scram import (
    ITERATIONS_MIN,
    ClientLogin,
    ServerLogin,
    Verifier,
    made_up_verifier,
    salted_password,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PASSWORD = "correct horse"


def verifier(password: str = PASSWORD) -> Verifier:
    return Verifier.of(password, SALT, ITERATIONS_MIN)


def log_in(user: str, password: str, verifiers: list[Verifier]) -> tuple[str, Verifier | None]:
    """Let both ends talk. Return the user that the server has seen, and the verifier that was used."""
    client, server = ClientLogin(user, CLIENT_NONCE), ServerLogin(SERVER_NONCE)
    asked = client.challenge(server.first(client.first(), verifiers))
    found = server.final(client.final(salted_password(password, asked.salt, asked.iterations)))
    if found is None:
        return server.user, None
    client.check(found[1])
    return server.user, found[0]


def test_example_of_rfc_7677() -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)  # shorter than a password may be here
    client, server = ClientLogin("user", CLIENT_NONCE), ServerLogin(SERVER_NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    stored = Verifier.parse(
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    first = server.first(client.first(), [stored])
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.challenge(first).iterations == 4096
    final = client.final(salted)
    assert final == b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    found = server.final(final)
    assert found == (stored, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    client.check(found[1])


@pytest.mark.parametrize("user", ["billing", "a,b=c", "日本", "x" * 127])
def test_user_with_the_password_is_let_in(user: str) -> None:
    assert log_in(user, PASSWORD, [verifier()]) == (user, verifier())


def test_password_is_the_same_in_each_of_its_forms() -> None:
    composed, decomposed = "pa\u00dfw\u00f6rter", "pa\u00dfwo\u0308rter"
    assert log_in("u", decomposed, [verifier(composed)])[1] is not None


def test_each_of_several_passwords_is_accepted_and_names_its_verifier() -> None:
    old, new = verifier("the old one"), verifier("the new one")
    assert log_in("u", "the old one", [old, new])[1] == old
    assert log_in("u", "the new one", [old, new])[1] == new


@pytest.mark.parametrize("verifiers", [[verifier("another one")], [made_up_verifier(b"key", "u")]])
def test_wrong_password_and_unknown_user_are_refused_alike(verifiers: list[Verifier]) -> None:
    assert log_in("u", PASSWORD, verifiers)[1] is None


def test_unknown_user_looks_the_same_each_time_and_differs_from_another() -> None:
    assert made_up_verifier(b"key", "u") == made_up_verifier(b"key", "u")
    assert made_up_verifier(b"key", "u").salt != made_up_verifier(b"key", "v").salt != made_up_verifier(b"other", "v").salt


@pytest.mark.parametrize("iterations", ["1", "4095", "1000001", "2147483648", "-1", "x", ""])
def test_client_refuses_a_number_of_iterations_that_helps_a_thief_or_blocks_it(iterations: str) -> None:
    client = ClientLogin("u", CLIENT_NONCE)
    with pytest.raises(AuthenticationError, match="iterations: expected 4096 to 1000000"):
        client.challenge(f"r={CLIENT_NONCE}more,s={base64.b64encode(SALT).decode()},i={iterations}".encode())


@pytest.mark.parametrize("nonce", ["", CLIENT_NONCE, "x" + CLIENT_NONCE])
def test_client_refuses_a_nonce_that_does_not_continue_its_own(nonce: str) -> None:
    with pytest.raises(AuthenticationError, match="did not continue the login"):
        ClientLogin("u", CLIENT_NONCE).challenge(f"r={nonce},s={base64.b64encode(SALT).decode()},i=4096".encode())


def test_client_notices_a_server_without_the_verifier() -> None:
    client, server = ClientLogin("u", CLIENT_NONCE), ServerLogin(SERVER_NONCE)
    asked = client.challenge(server.first(client.first(), [verifier()]))
    client.final(salted_password(PASSWORD, asked.salt, asked.iterations))
    for signature in (b"v=", b"v=" + base64.b64encode(bytes(32))):
        with pytest.raises(AuthenticationError, match="does not know this user's password"):
            client.check(signature)


def test_message_of_another_login_is_refused() -> None:
    first, second = ServerLogin("one" * 6), ServerLogin("two" * 6)
    client = ClientLogin("u", CLIENT_NONCE)
    asked = client.challenge(first.first(client.first(), [verifier()]))
    second.first(client.first(), [verifier()])
    with pytest.raises(RemoteProtocolError, match="does not continue this login"):
        second.final(client.final(salted_password(PASSWORD, asked.salt, asked.iterations)))


@given(st.binary(max_size=300) | st.text(max_size=80).map(lambda text: f"n,,n={text},r={CLIENT_NONCE}".encode()))
def test_any_first_message_is_answered_or_refused(message: bytes) -> None:
    server = ServerLogin(SERVER_NONCE)
    try:
        server.first(message, [verifier()])
    except RemoteProtocolError:
        return
    assert server.user


@given(st.binary(max_size=300) | st.text(max_size=80).map(lambda text: f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p={text}".encode()))
def test_any_last_message_is_refused(message: bytes) -> None:
    server = ServerLogin(SERVER_NONCE)
    server.first(ClientLogin("u", CLIENT_NONCE).first(), [verifier()])
    try:
        assert server.final(message) is None
    except RemoteProtocolError:
        pass


def test_verifier_is_written_and_parsed_and_shows_nothing() -> None:
    made = verifier()
    assert Verifier.parse(str(made)) == made
    assert base64.b64encode(made.stored_key).decode() not in repr(made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-1$4096:a$b:c",
        "SCRAM-SHA-256$4096:!$b:c",
        str(verifier()).replace("4096", "1"),
        str(verifier())[:-4],
        str(verifier()) + "x",
    ],
)
def test_text_that_is_no_verifier_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a verifier") as caught:
        Verifier.parse(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize("password", ["", "seven 7", "x" * 257, "\ud800" * 8])
def test_password_that_is_too_short_too_long_or_no_text_is_refused(password: str) -> None:
    with pytest.raises(ConfigError, match="a password"):
        Verifier.of(password, SALT)
