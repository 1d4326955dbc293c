# A session: a workspace with a sandbox of its own.
session=$(curl -s "$TOOLHOST_URL/v1/sessions" -H "Authorization: Bearer $TOOLHOST_KEY" \
  -H 'Content-Type: application/json' -d '{}' | jq -r .id)

# Run a command in it and wait for the result.
curl -s "$TOOLHOST_URL/v1/sessions/$session/calls" -H "Authorization: Bearer $TOOLHOST_KEY" \
  -H 'Content-Type: application/json' \
  -d '{"tool": "bash", "arguments": {"command": "echo hello from $(hostname)"}, "wait_ms": 10000}' | jq .result

# Run Python and follow its events as they come.
curl -sN "$TOOLHOST_URL/v1/sessions/$session/calls" -H "Authorization: Bearer $TOOLHOST_KEY" \
  -H 'Content-Type: application/json' -H 'Accept: text/event-stream' \
  -d '{"tool": "python_execute", "arguments": {"code": "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.5)"}}'
