"""Which engine answers at a URL? The client that speaks to it."""

from __future__ import annotations

from eagle_forensics.acceptance.clients.records import Client
from eagle_forensics.acceptance.clients.sglang import SglangClient
from eagle_forensics.acceptance.clients.vllm import VllmClient
from eagle_forensics.evidence.transport import Failure, Transport


async def connect(transport: Transport) -> Client:
    """The client for the engine that answers at the URL. Failure if none does, ValueError for one that is not known."""
    for path, client in (("/server_info", SglangClient), ("/get_server_info", SglangClient), ("/version", VllmClient)):
        try:
            said = await transport.json("GET", path)
        except Failure as failure:
            if failure.kind in ("status", "malformed", "redirect") and failure.status not in (401, 403):
                continue
            raise
        if isinstance(said, dict) and client.recognises(said):
            return client(transport)
    raise ValueError(f"{transport.url}: neither SGLang (/server_info) nor vLLM (/version) answers there. Check serving.url.")
