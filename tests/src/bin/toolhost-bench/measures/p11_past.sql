-- $calls ended calls of 100 tenants with 10 sessions each, over the last six days. A call, its three events, one piece of output.
-- No audit rows: nothing looks them up on the way of a call, and the sealer would chain them beside what is measured.
SET synchronous_commit = off;
SELECT toolhost_ensure_partitions((now() AT TIME ZONE 'UTC')::date - 6, 7);

CREATE FUNCTION pg_temp.id_at(at timestamptz, n bigint) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3)
        || '8' || substr(md5(n::text), 4, 15))::uuid
$$;

CREATE TEMPORARY TABLE past_tenants AS SELECT gen_random_uuid() AS id, n FROM generate_series(0, 99) AS n;
INSERT INTO tenants (id, name) SELECT id, 'past-' || n FROM past_tenants;

CREATE TEMPORARY TABLE past_sessions AS
SELECT pg_temp.id_at(now() - interval '6 days', g.n) AS id, t.id AS tenant_id, g.n
FROM generate_series(0, 999) AS g (n) JOIN past_tenants t ON t.n = g.n % 100;
INSERT INTO sessions (id, tenant_id, status, image, size, cpus, memory_mb, disk_mb, pids, runtime, idle_timeout_s, lifetime_s,
    created_at, expires_at, ended_at, end_reason)
SELECT id, tenant_id, 'ended', 'toolhost/sandbox:latest', 'small', 1, 512, 1024, 256, 'runc', 600, 86400,
    now() - interval '6 days', now() - interval '5 days', now() - interval '5 days', 'idle'
FROM past_sessions;

CREATE TEMPORARY TABLE past_calls AS
SELECT pg_temp.id_at(p.at, p.n) AS id, s.tenant_id, s.id AS session_id, p.at
FROM (SELECT g.n, now() - interval '10 minutes' - (interval '5 days 20 hours' * g.n / $calls) AS at
      FROM generate_series(0, $calls - 1) AS g (n)) AS p
JOIN past_sessions s ON s.n = p.n % 1000;

INSERT INTO calls (id, tenant_id, session_id, tool, version, effect, status, arguments, timeout_ms, output_budget_bytes, attempt, worker_id,
    last_seq, output_owner, principal, created_at, started_at, ended_at, result, ended, usage)
SELECT id, tenant_id, session_id, 'bash', '1.0.0', 'effectful', 'succeeded', '{"command": "echo hi"}', 120000, 30000, 1, session_id,
    3, id, '{"kind": "api_key"}', at, at, at, '{"is_error": false, "output": "hi\n", "structured": {"stdout": "hi\n", "stderr": "", "exit_code": 0},
    "content": [], "exit_code": 0, "signal": null, "system": null, "truncated": null, "cached": false}', '{"reason": "exited", "evidence": {}, "hint": null}',
    '{"queue_ms": 0, "duration_ms": 2, "cpu_ms": 1, "max_rss_bytes": 0, "bytes_in": 0, "bytes_out": 3, "tokens": 0, "cost_microusd": 0}'
FROM past_calls;
INSERT INTO call_events (call_id, seq, tenant_id, type, at, data) SELECT id, 1, tenant_id, 'call.started', at, '{"attempt": 1}' FROM past_calls;
INSERT INTO call_events (call_id, seq, tenant_id, type, at, owner, log_offset) SELECT id, 2, tenant_id, 'call.output', at, id, 0 FROM past_calls;
INSERT INTO call_events (call_id, seq, tenant_id, type, at) SELECT id, 3, tenant_id, 'call.ended', at FROM past_calls;
INSERT INTO output_chunks (owner, log_offset, tenant_id, stream, stream_offset, bytes) SELECT id, 0, tenant_id, 1, 0, 'hi
' FROM past_calls;
