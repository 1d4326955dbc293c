-- What waits: room on pages for rows that change often, logs of shells that run for longer than their tenant keeps output, and sessions that fit on no host.

-- The tenant's retention has passed it while it ran: its log goes once it has ended.
ALTER TABLE shells ADD COLUMN log_overdue boolean NOT NULL DEFAULT false;
CREATE INDEX shells_log_overdue ON shells (tenant_id, id) WHERE log_overdue;

-- A lease that is renewed, or a number of the last event that rises, finds room on the page of its row, and no index grows by it.
ALTER TABLE workers SET (fillfactor = 50);
ALTER TABLE sessions SET (fillfactor = 80);
CREATE OR REPLACE FUNCTION toolhost_ensure_partitions(first_day date, days integer) RETURNS integer
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
                    'CREATE TABLE public.%I PARTITION OF public.%I FOR VALUES FROM (%L) TO (%L) WITH (fillfactor = %s)',
                    partition, parent,
                    toolhost_uuid_floor(day::timestamp AT TIME ZONE 'UTC'),
                    toolhost_uuid_floor((day + 1)::timestamp AT TIME ZONE 'UTC'),
                    CASE parent WHEN 'calls' THEN 80 ELSE 100 END);
                made := made + 1;
            END IF;
        END LOOP;
    END LOOP;
    RETURN made;
END
$$;

-- As before, but what cannot be placed now hides nothing behind it: each size and runtime is tried once in a pass, and those that fit nowhere
-- take no try from the others.
CREATE OR REPLACE FUNCTION toolhost_find_places(asking uuid, most integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    waiting record;
    place record;
    placed integer := 0;
    nowhere text[] := '{}';
BEGIN
    FOR waiting IN
        SELECT s.id, s.cpus, s.memory_mb, s.disk_mb, s.runtime, s.host_id,
            row(s.cpus, s.memory_mb, s.disk_mb, s.runtime)::text AS shape FROM sessions s
        WHERE s.status = 'starting' AND s.worker_id IS NULL AND NOT s.end_requested
          AND (s.host_id IS NULL OR NOT EXISTS (SELECT FROM workers w WHERE w.host_id = s.host_id
              AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining))
        ORDER BY s.id LIMIT 1000
    LOOP
        CONTINUE WHEN waiting.shape = ANY (nowhere);
        SELECT p.verdict, p.host INTO place
            FROM toolhost_find_place(waiting.cpus, waiting.memory_mb, waiting.disk_mb, waiting.runtime, asking) p;
        EXIT WHEN place.verdict IN ('no_host', 'cordoned');
        IF place.host IS NULL THEN
            nowhere := nowhere || waiting.shape;
            EXIT WHEN cardinality(nowhere) = 64;
        ELSE
            UPDATE sessions SET host_id = place.host
                WHERE id = waiting.id AND status = 'starting' AND worker_id IS NULL AND host_id IS NOT DISTINCT FROM waiting.host_id;
            placed := placed + 1;
            EXIT WHEN placed = most;
        END IF;
    END LOOP;
    RETURN placed;
END
$$;

-- What 0039 lacked: a tenant that revokes a key of its own ends that key's shells.
GRANT UPDATE (end_wish) ON shells TO toolhost_app;

-- Last, as these keep everybody from the calls until the whole is committed.
-- A call that stands in line for a shell or a context, and when its turn came: its time counts from there, under any worker.
ALTER TABLE calls ADD COLUMN in_line boolean NOT NULL DEFAULT false, ADD COLUMN turn_at timestamptz;

DO $$
DECLARE
    partition regclass;
BEGIN
    FOR partition IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'calls'::regclass LOOP
        EXECUTE format('ALTER TABLE %s SET (fillfactor = 80)', partition);
    END LOOP;
END
$$;
