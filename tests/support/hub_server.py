"""A small Hugging Face Hub for tests: the real HTTP protocol, on loopback, with faults on demand.

    python tests/support/hub_server.py [--port 0] [--folder DIR]   prints its URL, then serves until its stdin closes

The unmodified `huggingface_hub` and `datasets` talk to it through HF_ENDPOINT (and HF_HUB_DISABLE_XET=1: the client
alone decides between Xet and LFS). It knows repositories of every kind, private and gated ones, tokens with and
without rights, preupload, LFS transfer in one piece or in parts, atomic commits with `parentCommit`, branches, tags,
pull requests, trees, and downloads by redirect with ranges. `/_test/` steers it: list requests, plant faults.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

WRITER, READER = "hf_testwriter", "hf_testreader"
TOKENS = {WRITER: "write", READER: "read", **json.loads(os.environ.get("EAGLE3_TEST_TOKENS") or "{}")}
USER, ORGS = "tester", ("org", "lab")
KINDS = ("model", "dataset", "space")
LFS_SUFFIXES = re.compile(r"\.(parquet|arrow|bin|gz|zip|zst|safetensors|npy|pt|png)$")
LFS_FROM_BYTES = 10 * 2**20
PAGE = 200

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
routes = web.RouteTableDef()


@dataclass
class Blob:
    """A file's content, kept under its git or LFS id."""

    oid: str
    size: int
    lfs: bool = False

    def entry(self, path: str) -> dict[str, Any]:
        shown: dict[str, Any] = {"type": "file", "path": path, "oid": self.oid, "size": self.size}
        if self.lfs:
            shown["oid"] = hashlib.sha1(self.oid.encode()).hexdigest()
            shown["lfs"] = {"oid": self.oid, "size": self.size, "pointerSize": 134}
        return shown


@dataclass
class Commit:
    parent: str | None
    files: dict[str, Blob]
    title: str
    description: str
    when: float


@dataclass
class Repo:
    kind: str
    id: str
    private: bool
    gated: Any = False
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)

    def find(self, revision: str) -> str:
        for names in (self.branches, self.tags, self.requests):
            if revision in names:
                return names[revision]
        found = [sha for sha in self.commits if len(revision) >= 7 and sha.startswith(revision)]
        if len(found) != 1:
            raise refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found[0]

    def add(self, parent: str | None, files: dict[str, Blob], title: str, description: str = "") -> str:
        seed = json.dumps([parent, sorted((path, blob.oid) for path, blob in files.items()), title, time.time_ns()])
        sha = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[sha] = Commit(parent, files, title, description, time.time())
        return sha


@dataclass
class Fault:
    """What goes wrong: at the (after + 1)-th request whose "METHOD path" matches, and `times` times from there.

    Actions: `status` answers with a status; `expired` refuses as an object storage does; `drop` closes the connection
    unanswered; `half` reads half of the body and closes; `lose` does the work and closes before the answer; `kill`
    kills `pid` unanswered; `kill_after` does the work and kills it.
    """

    match: str
    action: str
    after: int = 0
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "injected"
    pid: int = 0


def refuse(status: int, code: str, message: str) -> web.HTTPException:
    kinds = {400: web.HTTPBadRequest, 401: web.HTTPUnauthorized, 403: web.HTTPForbidden, 404: web.HTTPNotFound}
    kinds |= {409: web.HTTPConflict, 412: web.HTTPPreconditionFailed, 422: web.HTTPUnprocessableEntity}
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return kinds[status](text=json.dumps({"error": message}), content_type="application/json", headers=headers)


class Hub:
    """State of the server; blobs lie in a folder under their ids."""

    def __init__(self, folder: Path, part_bytes: int = 0) -> None:
        self.folder, self.part_bytes = folder, part_bytes
        self.folder.mkdir(parents=True, exist_ok=True)
        self.repos: dict[tuple[str, str], Repo] = {}
        self.faults: list[Fault] = []
        self.requests: list[dict[str, Any]] = []

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**34, middlewares=[self.record, self.fail])
        app[HUB] = self
        app.add_routes(routes)
        return app

    @web.middleware
    async def record(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/_test/"):
            return await handler(request)
        entry: dict[str, Any] = {
            "method": request.method,
            "path": request.path,
            "range": request.headers.get("Range"),
            "authorized": "Authorization" in request.headers,
            "received": 0,
            "sent": 0,
            "status": 0,
        }
        self.requests.append(entry)
        request["entry"] = entry
        try:
            response = await handler(request)
        except web.HTTPException as error:
            entry["status"] = error.status
            raise
        entry["status"] = response.status
        return response

    @web.middleware
    async def fail(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        line = f"{request.method} {request.path}"
        for fault in self.faults:
            if not request.path.startswith("/_test/") and fault.times and re.search(fault.match, line):
                if fault.after:
                    fault.after -= 1
                    continue
                fault.times -= 1
                return await self._strike(fault, request, handler)
        return await handler(request)

    async def _strike(self, fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
        if fault.action == "status":
            headers = {"X-Error-Message": fault.message, **fault.headers}
            return web.json_response({"error": fault.message}, status=fault.status, headers=headers)
        if fault.action == "expired":
            body = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
            return web.Response(status=403, text=body, content_type="application/xml")
        if fault.action == "half":
            wanted = int(request.headers.get("Content-Length") or 0) // 2
            while wanted > 0 and (chunk := await request.content.read(min(wanted, 65_536))):
                wanted -= len(chunk)
        if fault.action in ("lose", "kill_after"):
            await handler(request)
        if fault.action.startswith("kill"):
            os.kill(fault.pid, signal.SIGKILL)
        assert request.transport is not None
        request.transport.abort()
        raise asyncio.CancelledError

    def rights(self, request: web.Request) -> str:
        """Return "write", "read" or "" for the token of a request; a token that is no token is refused."""
        header = request.headers.get("Authorization", "")
        if not header:
            return ""
        if header.removeprefix("Bearer ") not in TOKENS:
            raise refuse(401, "", "Invalid credentials in Authorization header")
        return TOKENS[header.removeprefix("Bearer ")]

    def repo(self, request: web.Request, *, write: bool = False) -> Repo:
        kind = request.match_info.get("kind", "models").rstrip("s")
        name = f"{request.match_info['ns']}/{request.match_info['name']}"
        rights, repo = self.rights(request), self.repos.get((kind, name))
        if repo is None or (repo.private and not rights):
            raise refuse(404 if rights else 401, "RepoNotFound", "Repository not found")
        if write and rights != "write":
            raise refuse(403 if rights else 401, "", f"You don't have the rights to write to {name}")
        if write and name.split("/")[0] not in (USER, *ORGS):
            raise refuse(403, "", f"You don't have the rights to write in the namespace {name.split('/')[0]}")
        return repo

    def keep(self, data: bytes) -> Blob:
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        (self.folder / oid).write_bytes(data)
        return Blob(oid, len(data))


HUB: web.AppKey[Hub] = web.AppKey("hub", Hub)
API = "/api/{kind:models|datasets|spaces}/{ns}/{name}"


def hub(request: web.Request) -> Hub:
    return request.app[HUB]


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def base_url(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"


@routes.get("/api/whoami-v2")
async def whoami(request: web.Request) -> web.Response:
    role = hub(request).rights(request)
    if not role:
        raise refuse(401, "", "Invalid username or password.")
    orgs = [{"name": name, "type": "org", "roleInOrg": "write"} for name in ORGS]
    token = {"displayName": "test", "role": role}
    return web.json_response(
        {"type": "user", "name": USER, "orgs": orgs, "auth": {"type": "access_token", "accessToken": token}}
    )


@routes.post("/api/repos/create")
async def create_repo(request: web.Request) -> web.Response:
    rights, body = hub(request).rights(request), await request.json()
    name = f"{body.get('organization') or USER}/{body['name'].split('/')[-1]}"
    kind = body.get("type") or "model"
    if rights != "write" or name.split("/")[0] not in (USER, *ORGS):
        message = f"You don't have the rights to create a {kind} under the namespace {name.split('/')[0]}"
        raise refuse(403 if rights else 401, "", message)
    url = f"{base_url(request)}/{'' if kind == 'model' else kind + 's/'}{name}"
    if (kind, name) in hub(request).repos:
        return web.json_response({"error": "You already created this repo", "url": url, "id": name}, status=409)
    repo = Repo(kind, name, bool(body.get("private") or body.get("visibility") == "private"))
    attributes = hub(request).keep(b"*.parquet filter=lfs diff=lfs merge=lfs -text\n")
    repo.branches["main"] = repo.add(None, {".gitattributes": attributes}, "initial commit")
    hub(request).repos[kind, name] = repo
    return web.json_response({"url": url, "name": name, "id": name})


@routes.delete("/api/repos/delete")
async def delete_repo(request: web.Request) -> web.Response:
    body = await request.json()
    key = (body.get("type") or "model", f"{body.get('organization') or USER}/{body['name'].split('/')[-1]}")
    return web.Response(status=200 if hub(request).repos.pop(key, None) else 404)


@routes.put(API + "/settings")
async def settings(request: web.Request) -> web.Response:
    repo, body = hub(request).repo(request, write=True), await request.json()
    repo.private = body.get("private", repo.private)
    repo.gated = body.get("gated", repo.gated)
    return web.json_response({})


@routes.get(API)
@routes.get(API + "/revision/{rev}")
async def repo_info(request: web.Request) -> web.Response:
    repo = hub(request).repo(request)
    sha = repo.find(request.match_info.get("rev", "main"))
    commit = repo.commits[sha]
    return web.json_response(
        {
            "_id": sha[:24],
            "id": repo.id,
            "author": repo.id.split("/")[0],
            "sha": sha,
            "private": repo.private,
            "gated": repo.gated,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "lastModified": stamp(commit.when),
            "createdAt": stamp(commit.when),
            "siblings": [{"rfilename": path} for path in sorted(commit.files)],
        }
    )


@routes.get(API + "/refs")
async def refs(request: web.Request) -> web.Response:
    repo = hub(request).repo(request)

    def shown(names: dict[str, str], prefix: str) -> list[dict[str, str]]:
        return [{"name": name, "ref": prefix + name, "targetCommit": sha} for name, sha in names.items()]

    body: dict[str, Any] = {"branches": shown(repo.branches, "refs/heads/"), "tags": shown(repo.tags, "refs/tags/")}
    body["converts"] = []
    if request.query.get("include_prs"):
        body["pullRequests"] = shown(repo.requests, "")
    return web.json_response(body)


@routes.post(API + "/tag/{rev}")
async def create_tag(request: web.Request) -> web.Response:
    repo, body = hub(request).repo(request, write=True), await request.json()
    if body["tag"] in repo.tags:
        return web.json_response({"error": f"Tag reference exists already: {body['tag']}"}, status=409)
    repo.tags[body["tag"]] = repo.find(request.match_info["rev"])
    return web.json_response({})


@routes.post(API + "/branch/{rev}")
async def create_branch(request: web.Request) -> web.Response:
    repo, name = hub(request).repo(request, write=True), request.match_info["rev"]
    body = await request.json() if request.can_read_body else {}
    if name in repo.branches:
        return web.json_response({"error": f"Reference already exists: {name}"}, status=409)
    repo.branches[name] = repo.find(body.get("startingPoint") or "main")
    return web.json_response({})


@routes.delete(API + "/{what:tag|branch}/{rev}")
async def delete_ref(request: web.Request) -> web.Response:
    repo = hub(request).repo(request, write=True)
    names = repo.tags if request.match_info["what"] == "tag" else repo.branches
    if names.pop(request.match_info["rev"], None) is None:
        raise refuse(404, "RevisionNotFound", "Invalid rev id")
    return web.json_response({})


@routes.get(API + "/commits/{rev}")
async def list_commits(request: web.Request) -> web.Response:
    repo = hub(request).repo(request)
    sha: str | None = repo.find(request.match_info["rev"])
    listed = []
    while sha:
        commit = repo.commits[sha]
        entry = {"id": sha, "title": commit.title, "message": commit.description, "date": stamp(commit.when)}
        listed.append({**entry, "authors": [{"user": USER}]})
        sha = commit.parent
    return web.json_response(listed)


@routes.get(API + "/tree/{rev}")
@routes.get(API + "/tree/{rev}/{path:.*}")
async def tree(request: web.Request) -> web.Response:
    repo, folder = hub(request).repo(request), request.match_info.get("path", "").strip("/")
    files = repo.commits[repo.find(request.match_info["rev"])].files
    recursive = request.query.get("recursive", "").lower() in ("1", "true")
    entries: dict[str, dict[str, Any]] = {}
    for path, blob in sorted(files.items()):
        if folder and not path.startswith(folder + "/"):
            continue
        parts = path[len(folder) + 1 if folder else 0 :].split("/")
        for depth in range(1, len(parts) if recursive else min(2, len(parts))):
            inner = "/".join([*([folder] if folder else []), *parts[:depth]])
            oid = hashlib.sha1(inner.encode()).hexdigest()
            entries.setdefault(inner, {"type": "directory", "path": inner, "oid": oid, "size": 0})
        if recursive or len(parts) == 1:
            entries[path] = blob.entry(path)
    if folder and not entries:
        raise refuse(404, "EntryNotFound", f"{folder} does not exist on {request.match_info['rev']!r}")
    start = int(request.query.get("cursor") or 0)
    headers = {}
    if start + PAGE < len(entries):
        url = request.url.update_query(cursor=str(start + PAGE))
        headers["Link"] = f'<{url}>; rel="next"'
    return web.json_response(list(entries.values())[start : start + PAGE], headers=headers)


@routes.post(API + "/paths-info/{rev}")
async def paths_info(request: web.Request) -> web.Response:
    repo = hub(request).repo(request)
    files = repo.commits[repo.find(request.match_info["rev"])].files
    if "json" in request.content_type:
        wanted = (await request.json())["paths"]
    else:
        wanted = (await request.post()).getall("paths")
    found = []
    for path in wanted:
        if path in files:
            found.append(files[path].entry(path))
        elif any(name.startswith(path.rstrip("/") + "/") for name in files):
            oid = hashlib.sha1(path.encode()).hexdigest()
            found.append({"type": "directory", "path": path, "oid": oid, "size": 0})
    return web.json_response(found)


@routes.post("/api/validate-yaml")
async def validate_yaml(request: web.Request) -> web.Response:
    return web.json_response({"errors": [], "warnings": []})


@routes.post(API + "/preupload/{rev}")
async def preupload(request: web.Request) -> web.Response:
    repo = hub(request).repo(request, write=True)
    known = repo.commits[repo.find(request.match_info["rev"])].files
    answers = []
    for entry in (await request.json())["files"]:
        large = entry["size"] >= LFS_FROM_BYTES or LFS_SUFFIXES.search(entry["path"])
        oid = known[entry["path"]].oid if entry["path"] in known else None
        mode = "lfs" if large else "regular"
        answers.append({"path": entry["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return web.json_response({"files": answers})


@routes.post("/{kind:datasets|spaces}/{ns}/{name}.git/info/lfs/objects/batch")
@routes.post("/{ns}/{name}.git/info/lfs/objects/batch")
async def lfs_batch(request: web.Request) -> web.Response:
    hub(request).repo(request, write=True)
    # another host, as on the real Hub
    base, part, answers = f"http://localhost:{request.url.port}/_lfs", hub(request).part_bytes, []
    for wanted in (await request.json())["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        answer: dict[str, Any] = {"oid": oid, "size": size}
        if not (hub(request).folder / oid).exists():
            upload: dict[str, Any] = {"href": f"{base}/{oid}"}
            if part and size > part:
                pieces = {str(n + 1): f"{base}/{oid}/part/{n + 1}" for n in range(-(-size // part))}
                upload = {"href": f"{base}/{oid}/complete", "header": {"chunk_size": str(part), **pieces}}
            answer["actions"] = {"upload": upload, "verify": {"href": f"{base}/{oid}/verify"}}
        answers.append(answer)
    return web.json_response({"transfer": "multipart" if part else "basic", "objects": answers})


@routes.put("/_lfs/{oid:[0-9a-f]{64}}")
@routes.put("/_lfs/{oid:[0-9a-f]{64}}/part/{part}")
async def lfs_put(request: web.Request) -> web.Response:
    oid, part = request.match_info["oid"], request.match_info.get("part")
    place, digest = hub(request).folder / f"{oid}.{part or 'whole'}.part", hashlib.sha256()
    with place.open("wb") as file:
        async for chunk in request.content.iter_chunked(2**20):
            file.write(chunk)
            digest.update(chunk)
            request["entry"]["received"] += len(chunk)
    if part is None:
        if digest.hexdigest() != oid:
            raise refuse(400, "", "sha256 mismatch")
        place.rename(hub(request).folder / oid)
    return web.Response(headers={"ETag": f'"{digest.hexdigest()}"'})


@routes.post("/_lfs/{oid}/complete")
async def lfs_complete(request: web.Request) -> web.Response:
    oid, folder = request.match_info["oid"], hub(request).folder
    pieces = [folder / f"{oid}.{part['partNumber']}.part" for part in (await request.json())["parts"]]
    data = b"".join(piece.read_bytes() for piece in pieces)
    if hashlib.sha256(data).hexdigest() != oid:
        raise refuse(400, "", "sha256 mismatch")
    (folder / oid).write_bytes(data)
    return web.json_response({"success": True})


@routes.post("/_lfs/{oid}/verify")
async def lfs_verify(request: web.Request) -> web.Response:
    body = await request.json()
    place = hub(request).folder / body["oid"]
    return web.Response(status=200 if place.exists() and place.stat().st_size == body["size"] else 404)


@routes.post(API + "/commit/{rev}")
async def commit(request: web.Request) -> web.Response:
    repo, revision = hub(request).repo(request, write=True), request.match_info["rev"]
    parent = repo.find(revision)
    files, header = dict(repo.commits[parent].files), {"summary": "", "description": ""}
    for line in (await request.read()).splitlines():
        step = json.loads(line)
        kind, value = step["key"], step["value"]
        if kind == "header":
            header = value
            if value.get("parentCommit") and value["parentCommit"] != parent:
                raise refuse(412, "", "A commit has happened since. Please refresh and try again.")
        elif kind == "file":
            files[value["path"]] = hub(request).keep(base64.b64decode(value["content"]))
        elif kind == "lfsFile":
            place = hub(request).folder / value["oid"]
            if not place.exists():
                raise refuse(422, "", f"LFS object {value['oid']} was not uploaded")
            files[value["path"]] = Blob(value["oid"], place.stat().st_size, lfs=True)
        elif kind == "deletedFile":
            if files.pop(value["path"], None) is None:
                raise refuse(404, "EntryNotFound", f"A file with the name {value['path']} does not exist")
        elif kind == "deletedFolder":
            files = {
                path: blob for path, blob in files.items() if not path.startswith(value["path"].rstrip("/") + "/")
            }
    wants_request = bool(request.query.get("create_pr"))
    if not wants_request and revision not in repo.branches and revision not in repo.requests:
        raise refuse(400, "", "cannot commit to a tag or a commit")
    sha = repo.add(parent, files, header.get("summary", ""), header.get("description", ""))
    url = f"{base_url(request)}/{repo.kind}s/{repo.id}"
    body = {"success": True, "commitOid": sha, "commitUrl": f"{url}/commit/{sha}", "hookOutput": ""}
    if wants_request:
        number = len(repo.requests) + 1
        repo.requests[f"refs/pr/{number}"] = sha
        body["pullRequestUrl"] = f"{url}/discussions/{number}"
    else:
        (repo.branches if revision in repo.branches else repo.requests)[revision] = sha
    return web.json_response(body)


@routes.get("/{kind:datasets|spaces}/{ns}/{name}/resolve/{rev}/{path:.+}")
async def resolve(request: web.Request) -> web.StreamResponse:
    repo = hub(request).repo(request)
    if repo.gated and not hub(request).rights(request):
        raise refuse(401, "GatedRepo", f"Access to dataset {repo.id} is restricted. You must be authenticated.")
    sha = repo.find(request.match_info["rev"])
    blob = repo.commits[sha].files.get(request.match_info["path"])
    if blob is None:
        headers = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found", "X-Repo-Commit": sha}
        return web.Response(status=404, headers=headers)
    headers = {"ETag": f'"{blob.oid}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
    if blob.lfs:
        headers |= {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(blob.size)}
        # another host, as on the real Hub: clients must read the headers here and take no token there
        place = f"http://localhost:{request.url.port}/_cdn/{blob.oid}"
        return web.Response(status=302, headers={**headers, "Location": place})
    return web.FileResponse(hub(request).folder / blob.oid, headers=headers)


@routes.get("/_cdn/{oid:[0-9a-f]+}")
async def download(request: web.Request) -> web.StreamResponse:
    """Send a file in small pieces, counting them: a client that streams asks for everything and hangs up early."""
    place = hub(request).folder / request.match_info["oid"]
    size, wanted = place.stat().st_size, request.http_range
    chosen = range(size)[slice(wanted.start, wanted.stop)]
    partial = "Range" in request.headers
    response = web.StreamResponse(status=206 if partial else 200)
    response.content_length = len(chosen)
    if partial and chosen:
        response.headers["Content-Range"] = f"bytes {chosen[0]}-{chosen[-1]}/{size}"
    await response.prepare(request)
    with place.open("rb") as file:
        file.seek(chosen.start)
        while request.method == "GET" and request["entry"]["sent"] < len(chosen):
            piece = file.read(min(2**16, len(chosen) - request["entry"]["sent"]))
            try:
                await response.write(piece)
            except ConnectionError:
                break
            request["entry"]["sent"] += len(piece)
    return response


@routes.post("/_test/faults")
async def plant(request: web.Request) -> web.Response:
    hub(request).faults.append(Fault(**await request.json()))
    return web.json_response({})


@routes.delete("/_test/faults")
async def heal(request: web.Request) -> web.Response:
    hub(request).faults.clear()
    return web.json_response({})


@routes.get("/_test/requests")
async def show_requests(request: web.Request) -> web.Response:
    return web.json_response(hub(request).requests)


@routes.delete("/_test/requests")
async def forget_requests(request: web.Request) -> web.Response:
    hub(request).requests.clear()
    return web.json_response({})


@routes.post("/_test/merge")
async def merge(request: web.Request) -> web.Response:
    """Merge a pull request into main, as a person does on the web page."""
    body = await request.json()
    repo = hub(request).repos[body["kind"], body["repo"]]
    repo.branches["main"] = repo.requests[body["ref"]]
    return web.json_response({})


async def serve(port: int, folder: Path, part_bytes: int) -> None:
    runner = web.AppRunner(Hub(folder, part_bytes).application(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    assert site._server is not None
    print(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--part-bytes", type=int, default=0, help="transfer LFS files in parts of this size")
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.folder or Path(tempfile.mkdtemp()), options.part_bytes))
