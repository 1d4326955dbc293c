-- Usage: what calls and sessions cost, in rows of their own that outlive them.
--
-- Calls are metered from the sealed audit trail, which has one row for each end: a chain is numbered without gaps, so a
-- place in it says exactly what was counted, in every cluster that the rows are restored into. The place moves in the
-- transaction that adds to the sums.

-- Sums of ended calls by hour and tool, and by class of their duration, so that they are a histogram as well.
CREATE TABLE usage_calls (
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    hour timestamptz NOT NULL,
    tool text NOT NULL,
    -- See domain::usage; -1 for calls that never ran.
    duration_class smallint NOT NULL,
    calls bigint NOT NULL,
    succeeded bigint NOT NULL,
    tool_errors bigint NOT NULL,
    failed bigint NOT NULL,
    timed_out bigint NOT NULL,
    cancelled bigint NOT NULL,
    denied bigint NOT NULL,
    lost bigint NOT NULL,
    waited bigint NOT NULL,
    cpu_ms bigint NOT NULL,
    duration_ms bigint NOT NULL,
    queue_ms bigint NOT NULL,
    bytes_in bigint NOT NULL,
    bytes_out bigint NOT NULL,
    PRIMARY KEY (tenant_id, hour, tool, duration_class),
    CONSTRAINT usage_calls_class_known CHECK (duration_class BETWEEN -1 AND 95)
);
CREATE INDEX usage_calls_by_hour ON usage_calls (hour, tenant_id);

-- The same for each session; goes with its calls.
CREATE TABLE usage_session_calls (
    LIKE usage_calls INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    session_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, session_id, hour, tool, duration_class)
);
CREATE INDEX usage_session_calls_by_session ON usage_session_calls (session_id);

-- What was refused, for those who look for bottlenecks.
CREATE TABLE usage_refusals (
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    hour timestamptz NOT NULL,
    action text NOT NULL,
    reason text NOT NULL,
    refusals bigint NOT NULL,
    PRIMARY KEY (tenant_id, hour, action, reason)
);

-- What is billed: one row for each tenant and hour, written when the hour is over and never changed.
CREATE TABLE usage_hours (
    -- The hour and the tenant, so that the order of ids is the order of hours.
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    hour timestamptz NOT NULL,
    calls bigint NOT NULL,
    errors bigint NOT NULL,
    cpu_ms bigint NOT NULL,
    bytes_in bigint NOT NULL,
    bytes_out bigint NOT NULL,
    -- Seconds that sessions served, by size class; `custom` for resources given one by one.
    session_seconds jsonb NOT NULL,
    gb_seconds double precision NOT NULL,
    closed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT usage_hours_once UNIQUE (tenant_id, hour)
);
CREATE INDEX usage_hours_by_tenant ON usage_hours (tenant_id, id);

CREATE FUNCTION usage_hours_stay() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'an hour that is closed does not change';
END
$$;
CREATE TRIGGER usage_hours_stay BEFORE UPDATE ON usage_hours FOR EACH ROW EXECUTE FUNCTION usage_hours_stay();

-- How far each chain of the audit trail is metered.
CREATE TABLE usage_places (
    chain uuid PRIMARY KEY,
    seq bigint NOT NULL,
    metered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Hours before this are closed. Null until the first pass.
CREATE TABLE usage_meter (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    closed_until timestamptz
);
INSERT INTO usage_meter DEFAULT VALUES;

-- Sessions that ended within the hour that is closed.
CREATE INDEX sessions_by_end ON sessions (ended_at) WHERE ended_at IS NOT NULL;

GRANT SELECT, INSERT, UPDATE, DELETE ON usage_calls, usage_session_calls, usage_refusals, usage_places TO toolhost_system;
GRANT SELECT, INSERT, DELETE ON usage_hours TO toolhost_system;
GRANT SELECT, UPDATE ON usage_meter TO toolhost_system;
GRANT SELECT ON usage_calls, usage_session_calls, usage_refusals, usage_hours, usage_meter TO toolhost_app;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['usage_calls', 'usage_session_calls', 'usage_refusals', 'usage_hours'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY app_sees_its_tenant ON %I FOR SELECT TO toolhost_app USING (tenant_id = toolhost_tenant())', name);
        EXECUTE format('CREATE POLICY system_sees_all ON %I TO toolhost_system USING (true) WITH CHECK (true)', name);
    END LOOP;
END
$$;
