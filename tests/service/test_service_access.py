"""Who may do what: every operation, every token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from service_process import TOKENS, Api, ServeProcess, check_answer, inside

from headgate import ValidationError
from headgate.files import DocumentError
from headgate.service.app import OPERATIONS, create_app
from headgate.service.operations import Operation
from headgate.service.tokens import SCOPES, Token, Tokens, hashed, load_tokens, new_token

PUBLIC = {"/healthz", "/readyz", "/openapi.json", "/docs"}
NEEDED = [one for one in OPERATIONS if one.path not in PUBLIC]


@pytest.fixture(scope="module")
def clients(service: ServeProcess) -> Iterator[dict[str | None, httpx.Client]]:
    opened = {name: service.client(token) for name, token in TOKENS.items()} | {None: service.client()}
    yield opened
    for client in opened.values():
        client.close()


def place(operation: Operation) -> str:
    return operation.template.format(entity_id="nobody", resource="r", lease_id="0" * 24, namespace="no-such")


def test_nothing_is_open_by_mistake() -> None:
    app = create_app("memory://")
    paths = {endpoint.path for endpoint in app.endpoints} | {page.path for page in app.pages}
    assert paths == {one.path for one in OPERATIONS} | PUBLIC
    assert {one.path for one in OPERATIONS if one.scope is None} == PUBLIC - {"/openapi.json", "/docs"}
    assert {one.scope for one in NEEDED} == set(SCOPES)
    writing = {one.scope for one in NEEDED if one.method in ("PUT", "PATCH", "DELETE")}
    assert writing == {"admin", "namespaces"}


@pytest.mark.parametrize("operation", NEEDED, ids=lambda one: f"{one.method} {one.path}")
def test_every_operation_needs_its_scope(operation: Operation, clients: dict[str | None, httpx.Client]) -> None:
    for name in (None, *SCOPES):
        answer = clients[name].request(operation.method, place(operation), json={})
        check_answer(answer)
        if name is None:
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
        elif name == operation.scope or (name == "admin" and operation.scope != "namespaces"):
            assert answer.status_code not in (401, 403), answer.text
        else:
            assert answer.status_code == 403
            assert operation.scope in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {TOKENS['admin']}",
        TOKENS["admin"],
        f"Bearer {TOKENS['admin']}x",
        f"Bearer {TOKENS['admin'][:-1]}",
        f"Bearer {hashed(TOKENS['admin'])}",
        f"Bearer {TOKENS['admin']}, {TOKENS['admin']}",
        "Bearer \xff\xfe",
    ],
)
def test_malformed_authorization_is_a_401(service: ServeProcess, header: str) -> None:
    answer = httpx.get(f"{service.url}/v1/limits/system", headers=[(b"authorization", header.encode("latin-1"))])
    check_answer(answer)
    assert answer.status_code == 401


def test_two_tokens_are_none(service: ServeProcess) -> None:
    both = [("authorization", f"Bearer {TOKENS[name]}") for name in ("admin", "read")]
    assert httpx.get(f"{service.url}/v1/limits/system", headers=both).status_code == 401
    small = {"AUTHORIZATION": f"bearer   {TOKENS['read']}"}
    assert httpx.get(f"{service.url}/v1/limits/system", headers=small).status_code == 200


def test_a_token_sees_its_namespace_alone(api: Api, clients: dict[str | None, httpx.Client], entity: str) -> None:
    other = Api(clients["other"])
    api.post("/v1/entities", {"entity_id": entity}, status=201)
    api("PUT", f"/v1/limits/entities/{entity}", {"limits": ["n=1/week"]})
    wish = {"entity_id": entity, "resource": "r", "limits": ["n=1/week"], "lease": {}}
    lease_id = api.post("/v1/acquire", wish)["lease_id"]
    other.get(f"/v1/entities/{entity}", status=404)
    assert other.get(f"/v1/limits/entities/{entity}") == {"limits": [], "inherit": True, "version": 0}
    assert other.get("/v1/usage", entity_id=entity)["limits"] == []
    other.post(f"/v1/leases/{lease_id}/release", {"rollback": True}, status=410)
    assert other.post("/v1/acquire", wish)["allowed"]
    assert not api.post("/v1/acquire", wish)["allowed"]


@pytest.mark.parametrize("path", sorted(PUBLIC))
def test_public_pages_need_no_token(service: ServeProcess, path: str) -> None:
    with service.client() as client:
        assert client.get(path).status_code == 200
        assert client.head(path).status_code == 200
        assert client.post(path).status_code == 405


class TestWithoutTokens:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("localhost", 200),
            ("LocalHost:8080", 200),
            ("127.0.0.1:1", 200),
            ("127.0.0.2", 200),
            ("[::1]:8080", 200),
            ("rebound.example", 421),
            ("localhost.example:8080", 421),
            ("127.0.0.1.example", 421),
            ("localhost@example.com", 421),
            ("192.168.0.1", 421),
            ("[::]", 421),
            ("0.0.0.0", 421),
            ("[", 421),
            ("", 421),
        ],
    )
    @pytest.mark.parametrize("path", ["/v1/limits/system", "/healthz"])
    def test_only_names_of_this_machine(self, path: str, host: str, status: int) -> None:
        async def ask(client: httpx.AsyncClient) -> list[int]:
            twice = [("host", "localhost"), ("host", "localhost")]
            return [(await client.get(path, headers=headers)).status_code for headers in ({"host": host}, twice)]

        assert inside(create_app("memory://"), ask) == [status, 421]


class TestFiles:
    GOOD = f"tokens:\n  - name: a\n    sha256: {hashed('t' * 32)}\n    scopes: [decide, read]\n    namespace: shop\n"

    def load(self, folder: Path, text: str, **environment: str) -> Tokens:
        path = folder / "tokens.yaml"
        path.write_text(text)
        return load_tokens(path, environment)

    def test_tokens_are_read_from_hashes_and_environment_variables(self, tmp_path: Path) -> None:
        made = new_token()
        tokens = self.load(
            tmp_path, self.GOOD + "  - name: b\n    token_env: B\n    scopes: [admin]\n", B=made, OTHER="x"
        )
        assert tokens.find("t" * 32) == Token("a", hashed("t" * 32), frozenset(["decide", "read"]), "shop")
        found = tokens.find(made)
        assert found is not None
        assert (found.name, found.namespace) == ("b", "default")
        assert all(found.allows(scope) for scope in SCOPES if scope != "namespaces")
        assert not found.allows("namespaces")
        assert tokens.find("") is None

    @pytest.mark.parametrize(
        ("text", "line", "what"),
        [
            ("", 1, "tokens"),
            ("tokens: []\n", 1, "tokens is empty"),
            ("tokens:\n  - name: a\n    scopes: [read]\n", 2, "either sha256"),
            (GOOD + "    token_env: B\n", 2, "either sha256"),
            (GOOD.replace("sha256: ", "sha256: x"), 3, "64 hexadecimal"),
            (GOOD.replace("decide", "write"), 4, "write"),
            (GOOD.replace("[decide, read]", "[]"), 4, "scopes must be a list"),
            (GOOD.replace("name: a", "name: a b"), 2, "a b"),
            (GOOD.replace("shop", "sh op"), 5, "sh op"),
            (GOOD + "    token: secret\n", 6, "unknown key 'token'"),
            (GOOD + GOOD.removeprefix("tokens:\n"), 6, "two tokens have the name 'a'"),
            (GOOD + GOOD.removeprefix("tokens:\n").replace("name: a", "name: b"), 6, "the same as an earlier one"),
            ("tokens:\n  - name: a\n    token_env: NOT_THERE\n    scopes: [read]\n", 3, "NOT_THERE"),
            ("tokens:\n  - name: a\n    token_env: SHORT\n    scopes: [read]\n", 3, "5 characters"),
        ],
    )
    def test_what_is_wrong_and_where(self, tmp_path: Path, text: str, line: int, what: str) -> None:
        with pytest.raises(DocumentError) as caught:
            self.load(tmp_path, text, SHORT="12345")
        assert f"tokens.yaml:{line}: " in str(caught.value)
        assert what in str(caught.value)
        assert "12345" not in str(caught.value)

    def test_a_token_instead_of_its_hash_is_not_shown(self, tmp_path: Path) -> None:
        made = new_token()
        with pytest.raises(ValidationError) as caught:
            self.load(tmp_path, self.GOOD.replace(hashed("t" * 32), made))
        assert made not in str(caught.value)
