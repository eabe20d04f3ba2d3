"""Two processes share one quota of 10,000 tokens a day with the real `openai` package, and neither ever sees a 429.

    pip install headgate openai
    python examples/openai_shared_quota.py

Each call takes its estimate before it is sent; what the response says was used is what stays taken. Both processes go
on until the quota is used up. The vendor is a stub on this machine that counts for itself.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
from openai import OpenAI

from headgate import Limit, RateLimitExceeded, SyncRateLimiter
from headgate.http.clients import token_usage
from headgate.http.clients.httpx2 import HeadgateTransport

QUOTA = 10_000
QUESTION = {
    "model": "gpt-4o",
    "max_tokens": 300,
    "messages": [{"role": "user", "content": "Why is the sky blue? " * 10}],
}


def estimate(body):
    """At most as much as it can cost: the tokens of the prompt, about one for four characters, and of the answer."""
    prompt = sum(len(message["content"]) for message in body["messages"])
    return {"requests": 1, "tokens": prompt // 4 + body["max_tokens"]}


def work(store_url, vendor_url):
    """A process: two threads that ask until there is nothing left."""
    calls = []
    with SyncRateLimiter(store_url) as limiter:
        transport = HeadgateTransport(
            limiter,
            "openai#gpt-4o",
            consume=lambda request: estimate(json.loads(request.content)),
            usage=token_usage,
            timeout=5,
        )
        client = OpenAI(api_key="none", base_url=vendor_url, http_client=httpx2.Client(transport=transport))
        with client, ThreadPoolExecutor(2) as threads:
            list(threads.map(ask_on, [client] * 2, [calls] * 2))
    print(json.dumps(calls))


def ask_on(client, calls):
    for number in itertools.count():
        try:
            usage = ask_in_a_stream(client) if number % 3 else client.chat.completions.create(**QUESTION).usage
        except RateLimitExceeded:  # it would have to wait for longer than the timeout
            return
        calls.append({"estimated": estimate(QUESTION)["tokens"], "used": usage.total_tokens})


def ask_in_a_stream(client):
    *_, last = client.chat.completions.create(**QUESTION, stream=True, stream_options={"include_usage": True})
    return last.usage


class Vendor(ThreadingHTTPServer):
    """Counts what it serves, and refuses what is more than the quota."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), VendorHandler)
        self.lock, self.random = threading.Lock(), random.Random(1)
        self.served = self.tokens = self.refused = 0

    def usage_of(self, body):
        """Tokens of the prompt, and of as long an answer as comes to its mind; None if that is too much."""
        prompt = sum(len(message["content"]) for message in body["messages"]) // 4
        with self.lock:
            answer = self.random.randint(20, body["max_tokens"])
            if self.tokens + prompt + answer > QUOTA:
                self.refused += 1
                return None
            self.served += 1
            self.tokens += prompt + answer
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


class VendorHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = self.server.usage_of(body)
        time.sleep(0.05)  # it thinks
        common = {"id": "chat", "created": 0, "model": body["model"], "usage": usage}
        if usage is None:
            self.answer(429, "application/json", json.dumps({"error": {"message": "quota exceeded"}}))
        elif body.get("stream"):
            chunk = {**common, "object": "chat.completion.chunk", "choices": []}
            self.answer(200, "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")
        else:
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "It is not."}}
            completion = {**common, "object": "chat.completion", "choices": [choice]}
            self.answer(200, "application/json", json.dumps(completion))

    def answer(self, status, kind, text):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.send_header("x-ratelimit-remaining-tokens", str(QUOTA - self.server.tokens))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


def main():
    with tempfile.TemporaryDirectory() as folder, Vendor() as vendor:
        threading.Thread(target=vendor.serve_forever, daemon=True).start()
        store_url = f"sqlite:///{Path(folder, 'quota.db')}"
        with SyncRateLimiter(store_url) as limiter:
            quota = [Limit.per_day("requests", 1_000), Limit.per_day("tokens", QUOTA)]
            limiter.set_limits("openai", quota, "gpt-4o")
            command = [sys.executable, __file__, store_url, f"http://127.0.0.1:{vendor.server_port}/v1"]
            workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
            calls = [json.loads(worker.communicate()[0]) for worker in workers]
            counted = QUOTA - limiter.available("openai", "gpt-4o")["tokens"]
        vendor.shutdown()
    for number, own in enumerate(calls, 1):
        print(f"process {number}: {len(own)} calls")
    print()
    for what, tokens in {
        "estimated": sum(call["estimated"] for own in calls for call in own),
        "used, as the responses say": sum(call["used"] for own in calls for call in own),
        "counted by headgate": counted,
        "counted by the vendor": vendor.tokens,
    }.items():
        print(f"{what:<28}{tokens:>8,} tokens")
    print(f"\nof {QUOTA:,}; calls served by the vendor: {vendor.served}, refused by the vendor: {vendor.refused}")


if __name__ == "__main__":
    work(*sys.argv[1:]) if sys.argv[1:] else main()
