-- Capacity: what hosts have, what is taken of it, and where a session goes. Why a session's end is asked for. Retention of a tenant.

-- Null where nothing is said: then it is not counted.
ALTER TABLE hosts
    ADD COLUMN cpus double precision,
    ADD COLUMN memory_mb bigint,
    ADD COLUMN disk_mb bigint,
    ADD COLUMN sandboxes integer,
    -- CPUs are shared: a session's are counted as this part of what it may use at most.
    ADD COLUMN cpu_overcommit double precision NOT NULL DEFAULT 1,
    ADD COLUMN schedule text NOT NULL DEFAULT 'open',
    -- When what still runs on a host that is drained is asked to end; null for never.
    ADD COLUMN drain_by timestamptz,
    ADD CONSTRAINT hosts_schedule_known CHECK (schedule IN ('open', 'cordoned', 'draining')),
    ADD CONSTRAINT hosts_drain_has_schedule CHECK (drain_by IS NULL OR schedule = 'draining'),
    ADD CONSTRAINT hosts_overcommit_positive CHECK (cpu_overcommit > 0);

-- What each worker's warm pool holds at most. It is set aside whether or not the pool is full at the moment.
ALTER TABLE workers
    ADD COLUMN pool_cpus double precision NOT NULL DEFAULT 0,
    ADD COLUMN pool_memory_mb bigint NOT NULL DEFAULT 0,
    ADD COLUMN pool_disk_mb bigint NOT NULL DEFAULT 0,
    ADD COLUMN pool_sandboxes integer NOT NULL DEFAULT 0;

ALTER TABLE sessions
    -- Why its end is asked for; null when somebody deleted it.
    ADD COLUMN end_wish text,
    ADD CONSTRAINT sessions_end_wish_known CHECK (end_wish IN ('host_drained', 'tenant_suspended')),
    DROP CONSTRAINT sessions_end_reason_known,
    ADD CONSTRAINT sessions_end_reason_known CHECK (end_reason IN ('deleted', 'idle', 'expired', 'oom', 'container_gone',
        'agent_gone', 'host_lost', 'image_unavailable', 'quota', 'host_drained', 'tenant_suspended'));

ALTER TABLE tenants
    -- Days that calls, events and output are kept, where it is less than the installation's.
    ADD COLUMN calls_days integer,
    ADD COLUMN events_days integer,
    ADD COLUMN output_days integer,
    ADD CONSTRAINT tenants_retention_positive CHECK (calls_days > 0 AND events_days > 0 AND output_days > 0);

-- What each host has and what is taken of it, by sessions that have not ended and by warm pools.
CREATE FUNCTION toolhost_host_load() RETURNS TABLE (
    host_id uuid, name text, schedule text, drain_by timestamptz, last_seen_at timestamptz, workers bigint,
    cpus double precision, memory_mb bigint, disk_mb bigint, sandboxes bigint,
    sessions bigint, used_cpus double precision, used_memory_mb bigint, used_disk_mb bigint,
    pool_cpus double precision, pool_memory_mb bigint, pool_disk_mb bigint, pool_sandboxes bigint)
LANGUAGE sql STABLE
AS $$
    SELECT h.id, h.name, h.schedule, h.drain_by, h.last_seen_at, w.workers,
        h.cpus * h.cpu_overcommit, h.memory_mb, h.disk_mb, h.sandboxes::bigint,
        s.sessions, s.cpus, s.memory_mb, s.disk_mb, w.cpus, w.memory_mb, w.disk_mb, w.sandboxes
    FROM hosts h
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE w.accepts_sessions AND NOT w.draining) AS workers, coalesce(sum(w.pool_cpus), 0) AS cpus,
            coalesce(sum(w.pool_memory_mb), 0)::bigint AS memory_mb, coalesce(sum(w.pool_disk_mb), 0)::bigint AS disk_mb,
            coalesce(sum(w.pool_sandboxes), 0) AS sandboxes
        FROM workers w WHERE w.host_id = h.id AND w.lease_expires_at > clock_timestamp()) w
    CROSS JOIN LATERAL (
        SELECT count(*) AS sessions, coalesce(sum(s.cpus), 0) AS cpus, coalesce(sum(s.memory_mb), 0) AS memory_mb,
            coalesce(sum(s.disk_mb), 0) AS disk_mb
        FROM sessions s WHERE s.host_id = h.id AND s.status <> 'ended') s
$$;

-- Where a session of this size goes, under a lock that lasts as long as the transaction: nobody else is placed meanwhile, so that
-- two cannot take the same room. Verdicts: `placed`; `no_host` when no host is alive (it may wait for one); and when it is
-- refused `full`, `too_large` (for any host), `cordoned` (no host is open).
--
-- The host with the largest free part of its memory gets it; the host of the asking process has a fifth of a lead, as a session there
-- starts without a detour.
CREATE FUNCTION toolhost_place(want_cpus double precision, want_memory_mb bigint, want_disk_mb bigint, asking uuid)
RETURNS TABLE (verdict text, host uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    home uuid;
    chosen uuid;
    alive boolean;
    open boolean;
    fitting boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(7450219373);
    SELECT w.host_id INTO home FROM workers w
        WHERE w.id = asking AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining;
    SELECT coalesce(bool_or(true), false), coalesce(bool_or(l.schedule = 'open'), false),
        coalesce(bool_or(l.schedule = 'open'
            AND (l.cpus IS NULL OR l.pool_cpus + want_cpus <= l.cpus)
            AND (l.memory_mb IS NULL OR l.pool_memory_mb + want_memory_mb <= l.memory_mb)
            AND (l.disk_mb IS NULL OR l.pool_disk_mb + want_disk_mb <= l.disk_mb)
            AND (l.sandboxes IS NULL OR l.pool_sandboxes + 1 <= l.sandboxes)), false)
        INTO alive, open, fitting
        FROM toolhost_host_load() l WHERE l.workers > 0;
    SELECT l.host_id INTO chosen FROM toolhost_host_load() l
        WHERE l.workers > 0 AND l.schedule = 'open'
          AND (l.cpus IS NULL OR l.pool_cpus + l.used_cpus + want_cpus <= l.cpus)
          AND (l.memory_mb IS NULL OR l.pool_memory_mb + l.used_memory_mb + want_memory_mb <= l.memory_mb)
          AND (l.disk_mb IS NULL OR l.pool_disk_mb + l.used_disk_mb + want_disk_mb <= l.disk_mb)
          AND (l.sandboxes IS NULL OR l.pool_sandboxes + l.sessions + 1 <= l.sandboxes)
        ORDER BY coalesce(1 - (l.pool_memory_mb + l.used_memory_mb)::double precision / nullif(l.memory_mb, 0), 1)
            + CASE WHEN l.host_id = home THEN 0.2 ELSE 0 END DESC, l.host_id
        LIMIT 1;
    verdict := CASE WHEN chosen IS NOT NULL THEN 'placed' WHEN NOT alive THEN 'no_host' WHEN NOT open THEN 'cordoned'
        WHEN fitting THEN 'full' ELSE 'too_large' END;
    host := chosen;
    RETURN NEXT;
END
$$;

-- Places sessions that were accepted while no host was alive, or whose host went away before it took them.
CREATE FUNCTION toolhost_place_waiting(asking uuid, most integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    waiting record;
    place record;
    placed integer := 0;
BEGIN
    FOR waiting IN
        SELECT s.id, s.cpus, s.memory_mb, s.disk_mb, s.host_id FROM sessions s
        WHERE s.status = 'starting' AND s.worker_id IS NULL AND NOT s.end_requested
          AND (s.host_id IS NULL OR NOT EXISTS (SELECT FROM workers w WHERE w.host_id = s.host_id
              AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining))
        ORDER BY s.id LIMIT most
    LOOP
        SELECT p.verdict, p.host INTO place FROM toolhost_place(waiting.cpus, waiting.memory_mb, waiting.disk_mb, asking) p;
        EXIT WHEN place.verdict IN ('no_host', 'cordoned');
        IF place.host IS NOT NULL THEN
            UPDATE sessions SET host_id = place.host
                WHERE id = waiting.id AND status = 'starting' AND worker_id IS NULL AND host_id IS NOT DISTINCT FROM waiting.host_id;
            placed := placed + 1;
        END IF;
    END LOOP;
    RETURN placed;
END
$$;

-- Placing runs as the system role, whoever asks: a tenant's role sees neither hosts nor the sessions of others.
GRANT CREATE ON SCHEMA public TO toolhost_system;
ALTER FUNCTION toolhost_place(double precision, bigint, bigint, uuid) OWNER TO toolhost_system;
REVOKE CREATE ON SCHEMA public FROM toolhost_system;
REVOKE ALL ON FUNCTION toolhost_host_load(), toolhost_place(double precision, bigint, bigint, uuid),
    toolhost_place_waiting(uuid, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION toolhost_place(double precision, bigint, bigint, uuid) TO toolhost_app, toolhost_system;
GRANT EXECUTE ON FUNCTION toolhost_host_load(), toolhost_place_waiting(uuid, integer) TO toolhost_system;

-- How far what a tenant keeps for a shorter time than others is pruned, by the ids of its calls.
CREATE TABLE tenant_pruned (
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    kind text NOT NULL,
    until uuid NOT NULL,
    PRIMARY KEY (tenant_id, kind),
    CONSTRAINT tenant_pruned_kind_known CHECK (kind IN ('calls', 'events', 'output'))
);
GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_pruned TO toolhost_system;
