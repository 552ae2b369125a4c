"""A server of a tool over stdin and stdout that is quick to start, and odd as its mode says."""

from __future__ import annotations

import json
import os
import sys
import time

MODE = sys.argv[1]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "description": "Tell the weather.", "inputSchema": SCHEMA}
ABOUT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": MODE, "version": "1"},
}


def tools(request):
    """What it says it has."""
    if MODE == "endless list":
        return {"tools": [TOOL], "nextCursor": str(request["id"])}
    if MODE == "many tools":
        return {"tools": [{**TOOL, "name": f"weather {n}"} for n in range(1000)]}
    if MODE == "odd names":
        names = ["", "a.b", "a/b", "\x1b[2J", "é", "n" * 5000, "same", "same"]
        return {"tools": [{**TOOL, "name": name} for name in names]}
    if MODE == "large schema":
        large = {"type": "object", "properties": {f"p{n}": {} for n in range(9000)}}
        return {
            "tools": [
                {**TOOL, "name": "weather0", "inputSchema": large},
                {**TOOL, "name": "weather1"},
            ]
        }
    return {"tools": [TOOL]} if MODE != "no list" else {"tools": "none"}


def called():
    """What a call gives back."""
    if MODE == "dies":
        sys.stderr.write("out of coffee\n")
        sys.exit(3)
    if MODE == "hangs":
        time.sleep(600)
    if MODE == "huge message":
        return {"content": [{"type": "text", "text": "x" * (9 << 20)}]}
    if MODE == "huge text":
        return {"content": [{"type": "text", "text": "x" * (1 << 20)}]}
    if MODE == "rubbish result":
        return {"content": [{"type": "poem"}]}
    if MODE == "many images":
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        return {"content": [image] * 20}
    text = str(os.getpid()) if MODE == "stays" else "18 °C"
    return {"content": [{"type": "text", "text": text}]}


def answer(request):
    """What it says to a request."""
    method = request["method"]
    if method == "initialize":
        return {"result": ABOUT}
    if method == "tools/list":
        return {"result": tools(request)}
    if method == "tools/call":
        if MODE == "refuses":
            return {"error": {"code": -32602, "message": "not \x1b[2Jtoday"}}
        return {"result": called()}
    return {"error": {"code": -32601, "message": "there is no such method"}}


if MODE == "never starts":
    time.sleep(600)
if MODE == "ends at once":
    sys.exit("no such database")
while MODE == "only rubbish":
    print("starting ...")
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        if MODE == "some rubbish":
            print("listening\n\n[1, 2]\n{")
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer(request)}), flush=True)
if MODE == "stays":
    time.sleep(600)
