-- Beside the calls of the bench's past: their audit rows, and what was metered of them, as far back as usage is kept.
INSERT INTO audit_log (tenant_id, at, principal, action, target, allowed, details)
SELECT tenant_id, at, '{"key_id": null, "name": "past", "address": null}', 'call.submit', 'call_' || id, true, '{"tool": "bash"}'
FROM past_calls;
-- As if they were sealed; nobody checks these links.
INSERT INTO audit_chain (chain, seq, entry_id, hash)
SELECT tenant_id, row_number() OVER (PARTITION BY tenant_id ORDER BY id), id, sha256(id::text::bytea) FROM audit_log;
UPDATE audit_sealer SET cluster = (SELECT system_identifier::text FROM pg_control_system()), xid = pg_current_xact_id(),
    entry_id = (SELECT max(id) FROM audit_log);

CREATE TEMPORARY TABLE past_usage AS
SELECT t.id AS tenant_id, t.n, date_trunc('hour', now()) - h.n * interval '1 hour' AS hour
FROM past_tenants t CROSS JOIN generate_series(1, 500) AS h (n);
INSERT INTO usage_calls (tenant_id, hour, tool, duration_class, calls, succeeded, tool_errors, failed, timed_out, cancelled, denied, lost,
    waited, cpu_ms, duration_ms, queue_ms, bytes_in, bytes_out)
SELECT tenant_id, hour, 'bash', 3, 9, 9, 0, 0, 0, 0, 0, 0, 0, 40, 90, 0, 100, 100 FROM past_usage;
INSERT INTO usage_session_calls (tenant_id, session_id, hour, tool, duration_class, calls, succeeded, tool_errors, failed, timed_out, cancelled,
    denied, lost, waited, cpu_ms, duration_ms, queue_ms, bytes_in, bytes_out)
SELECT u.tenant_id, s.id, u.hour, 'bash', 3, 9, 9, 0, 0, 0, 0, 0, 0, 0, 40, 90, 0, 100, 100
FROM past_usage u JOIN past_sessions s ON s.n = u.n;
INSERT INTO usage_refusals (tenant_id, hour, action, reason, refusals) SELECT tenant_id, hour, 'call.submit', 'policy_denied', 1 FROM past_usage;
INSERT INTO usage_hours (id, tenant_id, hour, calls, errors, cpu_ms, bytes_in, bytes_out, session_seconds, gb_seconds)
SELECT pg_temp.id_at(hour, n), tenant_id, hour, 9, 0, 40, 100, 100, '{"small": 3600}', 1800 FROM past_usage;
