#!/usr/bin/env bash
# Starts a server with the built-in model on a free port and runs outside clients against it. Fails if one of them does.
#
#   tools/clients/run.sh [--more] [FLASHLANE]
#
# FLASHLANE is the binary (default: target/release/flashlane, else target/debug). The clients are installed once, into
# target/clients-venv. --more adds langchain, litellm, schemathesis over OpenAI's own API description, and a tool-call probe.
set -euo pipefail
cd "$(dirname "$0")/../.."
more=""
if [ "${1:-}" = "--more" ]; then more=1; shift; fi
binary="${1:-target/release/flashlane}"
[ -x "$binary" ] || binary=target/debug/flashlane
venv=target/clients-venv

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check -r tools/clients/requirements.txt ${more:+-r tools/clients/requirements-more.txt}

port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
log=$(mktemp)
"$binary" serve --port "$port" >"$log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -f "$log"' EXIT

url="http://127.0.0.1:$port"
for _ in $(seq 300); do
    curl -sf "$url/health" >/dev/null && break
    kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.1
done
curl -sf "$url/health" >/dev/null || { cat "$log" >&2; echo "the server did not get ready" >&2; exit 1; }

export PYTHONDONTWRITEBYTECODE=1
python="$venv/bin/python"
"$python" tools/clients/openai_client.py "$url/v1"
if [ -n "$more" ]; then
    "$python" tools/clients/langchain_client.py "$url/v1"
    "$python" tools/clients/litellm_client.py "$url/v1"
fi
