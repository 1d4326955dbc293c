-- The main job: tenants, keys, hosts, workers, sessions, sandboxes, calls, events, output, shells, audit.
--
-- Two roles, never owners, stand behind the service's login role: toolhost_app sees one tenant's rows (the
-- tenant is set inside each transaction), toolhost_system runs the queue, sweeps and batches of many tenants.
-- Partitions have no grants: reading one directly would pass by the parent's policy.

DO $$
BEGIN
    BEGIN
        CREATE ROLE toolhost_app NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
    BEGIN
        CREATE ROLE toolhost_system NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
    IF NOT pg_has_role(current_user, 'toolhost_app', 'MEMBER') THEN
        EXECUTE format('GRANT toolhost_app TO %I', current_user);
    END IF;
    IF NOT pg_has_role(current_user, 'toolhost_system', 'MEMBER') THEN
        EXECUTE format('GRANT toolhost_system TO %I', current_user);
    END IF;
END
$$;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO toolhost_app, toolhost_system;

-- The tenant of this transaction; null (and so no row at all) when none is set.
CREATE FUNCTION toolhost_tenant() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT nullif(current_setting('toolhost.tenant_id', true), '')::uuid $$;

CREATE TABLE tenants (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    status text NOT NULL DEFAULT 'active',
    policy jsonb NOT NULL DEFAULT '{}',
    metadata jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT tenants_name_unique UNIQUE (name),
    CONSTRAINT tenants_name_length CHECK (char_length(name) BETWEEN 1 AND 100),
    CONSTRAINT tenants_status_known CHECK (status IN ('active', 'suspended'))
);

-- A key without a tenant is an operator's.
CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    tenant_id uuid REFERENCES tenants (id),
    name text NOT NULL,
    -- HMAC-SHA-256 of the secret under the installation's pepper.
    secret_hash bytea NOT NULL,
    scopes text[] NOT NULL,
    policy jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    CONSTRAINT api_keys_hash_length CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT api_keys_name_length CHECK (char_length(name) BETWEEN 1 AND 100),
    -- Only keys above tenants are operators', and they are nothing else.
    CONSTRAINT api_keys_operator_has_no_tenant CHECK ((tenant_id IS NULL) = ('operator' = ANY (scopes)))
);
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id, id);

CREATE TABLE hosts (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lost_at timestamptz,
    CONSTRAINT hosts_name_unique UNIQUE (name)
);

CREATE TABLE workers (
    id uuid PRIMARY KEY,
    host_id uuid NOT NULL REFERENCES hosts (id),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Renewed every 1.5 s on the database's clock. A worker whose lease is over has lost everything it held.
    lease_expires_at timestamptz NOT NULL,
    -- When the worker last came up or came back after an outage: it takes nothing over before one full lease.
    takeover_from timestamptz NOT NULL,
    draining boolean NOT NULL DEFAULT false,
    accepts_sessions boolean NOT NULL DEFAULT true
);
CREATE INDEX workers_by_host ON workers (host_id, lease_expires_at);

CREATE TABLE sessions (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    status text NOT NULL DEFAULT 'starting',
    image text NOT NULL,
    size text,
    cpus double precision NOT NULL,
    memory_mb integer NOT NULL,
    disk_mb integer NOT NULL,
    pids integer NOT NULL,
    runtime text NOT NULL,
    env jsonb NOT NULL DEFAULT '{}',
    metadata jsonb NOT NULL DEFAULT '{}',
    network jsonb NOT NULL DEFAULT '{"mode": "none"}',
    policy jsonb,
    idle_timeout_s integer NOT NULL,
    lifetime_s integer NOT NULL,
    one_shot boolean NOT NULL DEFAULT false,
    host_id uuid REFERENCES hosts (id),
    worker_id uuid,
    -- Ownership epoch: rises with each worker that takes the session over.
    epoch bigint NOT NULL DEFAULT 0,
    generation integer NOT NULL DEFAULT 0,
    end_requested boolean NOT NULL DEFAULT false,
    reset_requested integer NOT NULL DEFAULT 0,
    reset_done integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    last_active_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    end_reason text,
    end_message text,
    end_evidence jsonb,
    CONSTRAINT sessions_tenant_unique UNIQUE (tenant_id, id),
    CONSTRAINT sessions_status_known CHECK (status IN ('starting', 'running', 'ended')),
    CONSTRAINT sessions_end_has_reason CHECK ((status = 'ended') = (end_reason IS NOT NULL)),
    CONSTRAINT sessions_end_has_time CHECK ((status = 'ended') = (ended_at IS NOT NULL)),
    CONSTRAINT sessions_end_reason_known CHECK (end_reason IN ('deleted', 'idle', 'expired', 'oom',
        'container_gone', 'agent_gone', 'host_lost', 'image_unavailable', 'quota'))
);
CREATE INDEX sessions_open_by_tenant ON sessions (tenant_id) WHERE status <> 'ended';
CREATE INDEX sessions_open_by_worker ON sessions (worker_id) WHERE status <> 'ended';
CREATE INDEX sessions_open_by_host ON sessions (host_id) WHERE status <> 'ended';
CREATE INDEX sessions_unclaimed ON sessions (id) WHERE status = 'starting' AND worker_id IS NULL;

-- Uids go round: one is not given again while files of its last sandbox may still lie in a workspace.
CREATE SEQUENCE sandbox_tool_uids AS integer MINVALUE 1048576 MAXVALUE 2000000000 CYCLE;

CREATE TABLE sandboxes (
    id uuid PRIMARY KEY,
    host_id uuid NOT NULL REFERENCES hosts (id),
    worker_id uuid NOT NULL,
    tenant_id uuid,
    session_id uuid REFERENCES sessions (id),
    generation integer NOT NULL DEFAULT 0,
    tool_uid integer NOT NULL,
    epoch bigint NOT NULL DEFAULT 1,
    state text NOT NULL DEFAULT 'creating',
    image text NOT NULL,
    size text,
    runtime text NOT NULL,
    container_id text,
    workspace text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    removed_at timestamptz,
    CONSTRAINT sandboxes_state_known CHECK (state IN ('creating', 'warm', 'claimed', 'removing', 'removed')),
    CONSTRAINT sandboxes_uid_range CHECK (tool_uid BETWEEN 1048576 AND 2000000000)
);
-- An rlimit on processes is shared by uid across containers, so a uid serves one live sandbox of a host.
CREATE UNIQUE INDEX sandboxes_uid_per_live_host ON sandboxes (host_id, tool_uid) WHERE state <> 'removed';
CREATE INDEX sandboxes_live_by_host ON sandboxes (host_id) WHERE state <> 'removed';
CREATE INDEX sandboxes_by_session ON sandboxes (session_id, id) WHERE session_id IS NOT NULL;
CREATE UNIQUE INDEX sandboxes_one_per_session ON sandboxes (session_id) WHERE session_id IS NOT NULL AND state NOT IN ('removing', 'removed');

-- Granted blocks of a tenant's limit on running calls, so that the limit holds without a row lock per call.
CREATE TABLE tenant_slots (
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    worker_id uuid NOT NULL,
    granted integer NOT NULL CHECK (granted >= 0),
    PRIMARY KEY (tenant_id, worker_id)
);

-- The call row is the job. Partitioned by day of its UUIDv7 id, which takes its time from the database's clock.
CREATE TABLE calls (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    session_id uuid NOT NULL,
    parent_call_id uuid,
    after_call_id uuid,
    tool text NOT NULL,
    requested_tool text,
    version text NOT NULL,
    effect text NOT NULL,
    status text NOT NULL,
    arguments jsonb NOT NULL,
    description text,
    metadata jsonb NOT NULL DEFAULT '{}',
    timeout_ms bigint NOT NULL,
    output_budget_bytes bigint NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    worker_id uuid,
    last_seq bigint NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    output_owner uuid NOT NULL,
    principal jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    ended_at timestamptz,
    result jsonb,
    error jsonb,
    ended jsonb,
    usage jsonb,
    PRIMARY KEY (id),
    CONSTRAINT calls_session_of_tenant FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id),
    CONSTRAINT calls_status_known CHECK (status IN ('waiting_approval', 'queued', 'starting', 'running',
        'waiting_input', 'succeeded', 'failed', 'timed_out', 'cancelled', 'denied', 'lost')),
    CONSTRAINT calls_effect_known CHECK (effect IN ('pure', 'idempotent', 'effectful')),
    CONSTRAINT calls_end_is_whole CHECK ((status IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'denied', 'lost'))
        = (ended_at IS NOT NULL AND ended IS NOT NULL)),
    CONSTRAINT calls_active_has_worker CHECK (status NOT IN ('starting', 'running') OR worker_id IS NOT NULL)
) PARTITION BY RANGE (id);
-- Five indexes and no more: each costs on every admission and every end. Lookups other than by id give a lower
-- bound of the id as well (a session's calls are not older than the session), so that old partitions are left alone.
CREATE INDEX calls_queued ON calls (tenant_id, session_id, id) WHERE status = 'queued';
CREATE INDEX calls_active ON calls (session_id, id) WHERE status IN ('starting', 'running', 'waiting_input');
CREATE INDEX calls_by_tenant ON calls (tenant_id, id);
CREATE INDEX calls_by_session ON calls (session_id, id);

CREATE FUNCTION calls_terminal_stays() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'call % has ended as %', OLD.id, OLD.status USING ERRCODE = 'check_violation', CONSTRAINT = 'calls_terminal_stays';
END
$$;
CREATE TRIGGER calls_terminal_stays BEFORE UPDATE ON calls
    FOR EACH ROW WHEN (OLD.status IN ('succeeded', 'failed', 'timed_out', 'cancelled', 'denied', 'lost'))
    EXECUTE FUNCTION calls_terminal_stays();

-- Numbered facts of a call. No foreign key to calls: the statement that numbers events updates the call's row
-- under its lease and feeds the INSERT, so an event without a call cannot be written; a key would only cost.
CREATE TABLE call_events (
    call_id uuid NOT NULL,
    seq bigint NOT NULL,
    tenant_id uuid NOT NULL,
    type text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Null for call.ended, whose facts are those of the call's row, and for call.output.
    data jsonb,
    -- For call.output: where its bytes lie in output_chunks.
    owner uuid,
    log_offset bigint,
    PRIMARY KEY (call_id, seq),
    CONSTRAINT call_events_output_has_place CHECK ((type = 'call.output') = (owner IS NOT NULL AND log_offset IS NOT NULL))
) PARTITION BY RANGE (call_id);
CREATE UNIQUE INDEX call_events_one_end ON call_events (call_id) WHERE type = 'call.ended';

-- One log for calls and shells. An owner's bytes lie at offsets that count stdout and stderr together; an
-- offset that no row covers was dropped from the middle.
CREATE TABLE output_chunks (
    owner uuid NOT NULL,
    log_offset bigint NOT NULL,
    tenant_id uuid NOT NULL,
    stream smallint NOT NULL,
    stream_offset bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (owner, log_offset),
    CONSTRAINT output_chunks_stream_known CHECK (stream IN (1, 2)),
    CONSTRAINT output_chunks_offsets CHECK (log_offset >= 0 AND stream_offset >= 0 AND stream_offset <= log_offset)
) PARTITION BY RANGE (owner);
CREATE INDEX output_chunks_by_stream ON output_chunks (owner, stream, stream_offset);
-- Compressing would cost more than the disk that it saves: bytes are written once and read about once.
ALTER TABLE output_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE shells (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    session_id uuid NOT NULL,
    call_id uuid NOT NULL,
    operation integer NOT NULL,
    -- Owner of its log: itself, or the call that it was before it went to the background.
    output_owner uuid NOT NULL,
    command text NOT NULL,
    description text,
    status text NOT NULL DEFAULT 'running',
    exit_code integer,
    signal text,
    end_reason text,
    next_offset bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    CONSTRAINT shells_session_of_tenant FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id),
    CONSTRAINT shells_status_known CHECK (status IN ('running', 'exited')),
    CONSTRAINT shells_end_has_time CHECK ((status = 'exited') = (ended_at IS NOT NULL))
);
CREATE INDEX shells_by_session ON shells (session_id, id);

CREATE TABLE idempotency_keys (
    tenant_id uuid NOT NULL,
    -- Method and path pattern: the same key may be used for different operations.
    operation text NOT NULL,
    key text NOT NULL,
    -- SHA-256 of each top-level field of the request, so that a mismatch can name the fields.
    request jsonb NOT NULL,
    target uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, operation, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

-- One row per decision and state change. Append-only; chained later by one sealer.
CREATE TABLE audit_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id uuid,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    principal jsonb NOT NULL,
    action text NOT NULL,
    target text,
    allowed boolean NOT NULL,
    reason text,
    details jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_log_by_tenant ON audit_log (tenant_id, id);

CREATE FUNCTION audit_log_is_append_only() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END
$$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();

-- Secrets that the installation makes for itself (key pepper, signing key of stream URLs), when the operator gives none.
CREATE TABLE installation (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO installation DEFAULT VALUES;

-- Partitions by day of the ids' time. Making and dropping one waits for everybody who reads the table, and everybody else
-- waits behind it: so it waits a second at most, and the next sweep tries again.

-- The smallest version 7 uuid of a moment, as a bound of partitions (version bits left zero on purpose).
CREATE FUNCTION toolhost_uuid_floor(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid $$;

-- Makes the partitions of the given days (UTC) that are not there yet. Returns how many it made.
CREATE FUNCTION toolhost_ensure_partitions(first_day date, days integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
    parent text;
    day date;
    partition text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(7450219371);
    FOREACH parent IN ARRAY ARRAY['calls', 'call_events', 'output_chunks'] LOOP
        FOR day IN SELECT first_day + n FROM generate_series(0, days - 1) AS n LOOP
            partition := parent || '_' || to_char(day, 'YYYYMMDD');
            IF to_regclass('public.' || quote_ident(partition)) IS NULL THEN
                EXECUTE format(
                    'CREATE TABLE public.%I PARTITION OF public.%I FOR VALUES FROM (%L) TO (%L)',
                    partition, parent,
                    toolhost_uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
                    toolhost_uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'));
                made := made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END
$$;

-- Drops the partitions of one table that lie wholly before a day (UTC). Returns how many it dropped.
CREATE FUNCTION toolhost_drop_partitions(parent text, before date) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '1s'
AS $$
DECLARE
    child record;
    dropped integer := 0;
BEGIN
    IF parent NOT IN ('calls', 'call_events', 'output_chunks') THEN
        RAISE EXCEPTION 'not a partitioned table of toolhost: %', parent;
    END IF;
    PERFORM pg_advisory_xact_lock(7450219371);
    FOR child IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = ('public.' || quote_ident(parent))::regclass
          AND c.relname ~ ('^' || parent || '_[0-9]{8}$')
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < before
    LOOP
        EXECUTE format('DROP TABLE public.%I', child.relname);
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END
$$;
REVOKE ALL ON FUNCTION toolhost_ensure_partitions(date, integer), toolhost_drop_partitions(text, date) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION toolhost_ensure_partitions(date, integer), toolhost_drop_partitions(text, date) TO toolhost_system;
SELECT toolhost_ensure_partitions((now() AT TIME ZONE 'UTC')::date - 1, 9);

-- Who may do what. Forced row-level security, so that even the owner has none of a tenant's rows by accident.
GRANT SELECT, INSERT, UPDATE, DELETE ON tenants, api_keys, hosts, workers, sessions, sandboxes, tenant_slots, calls, call_events,
    output_chunks, shells, idempotency_keys TO toolhost_system;
GRANT SELECT, INSERT ON audit_log TO toolhost_system;
GRANT SELECT ON installation TO toolhost_system;
GRANT USAGE ON SEQUENCE sandbox_tool_uids TO toolhost_system;
GRANT SELECT, INSERT, UPDATE ON sessions, calls TO toolhost_app;
GRANT SELECT ON tenants, output_chunks, shells TO toolhost_app;
-- Whether a worker is alive is no secret of a tenant.
GRANT SELECT ON workers TO toolhost_app;
GRANT SELECT, INSERT ON call_events TO toolhost_app;
-- Everything of a key but its hash.
GRANT SELECT (id, tenant_id, name, scopes, policy, created_at, expires_at, revoked_at, last_used_at), INSERT,
    UPDATE (revoked_at) ON api_keys TO toolhost_app;
GRANT SELECT, INSERT, DELETE ON idempotency_keys TO toolhost_app;
GRANT SELECT, INSERT ON audit_log TO toolhost_app;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['api_keys', 'sessions', 'sandboxes', 'tenant_slots', 'calls', 'call_events',
        'output_chunks', 'shells', 'idempotency_keys', 'audit_log'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY app_sees_its_tenant ON %I TO toolhost_app
            USING (tenant_id = toolhost_tenant()) WITH CHECK (tenant_id = toolhost_tenant())', name);
        EXECUTE format('CREATE POLICY system_sees_all ON %I TO toolhost_system USING (true) WITH CHECK (true)', name);
    END LOOP;
    ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
    ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
    CREATE POLICY app_sees_itself ON tenants FOR SELECT TO toolhost_app USING (id = toolhost_tenant());
    CREATE POLICY system_sees_all ON tenants TO toolhost_system USING (true) WITH CHECK (true);
END
$$;
