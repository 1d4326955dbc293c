-- Shells end with the key that started them, and the CPU time that they take is metered.

-- Who started it: the id of the key, as calls.principal has it. Shells of a binary from before have none here, but their call's row.
ALTER TABLE shells ADD COLUMN key_id text;
-- Why it is to end without its caller's wish.
ALTER TABLE shells ADD COLUMN end_wish text;
-- CPU time of its tree as far as it is known, and how much of that is in the sums of usage.
ALTER TABLE shells ADD COLUMN cpu_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE shells ADD COLUMN cpu_metered_ms bigint NOT NULL DEFAULT 0;
-- Both hold a few rows at a time: what is to end, and what was not added yet.
CREATE INDEX shells_to_end ON shells (session_id) WHERE status = 'running' AND end_wish IS NOT NULL;
CREATE INDEX shells_to_meter ON shells (tenant_id, id) WHERE cpu_ms > cpu_metered_ms;
CREATE INDEX api_keys_revoked ON api_keys (revoked_at) WHERE revoked_at IS NOT NULL;
