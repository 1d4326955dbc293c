-- Engines: whether a host can make sandboxes at the moment, on which runtimes, and how many sessions its workers keep. Until now a
-- session was placed on a host whose engine was down, or whose workers were full, and waited there until its life was over.

ALTER TABLE workers
    -- False while the engine does not answer, or is refused as unsafe.
    ADD COLUMN makes_sandboxes boolean NOT NULL DEFAULT true,
    -- Null until the engine has said which it has: then it is not asked for.
    ADD COLUMN runtimes text[],
    -- Sessions that it keeps at most; null where nothing is said.
    ADD COLUMN sessions integer CONSTRAINT workers_sessions_positive CHECK (sessions > 0);

-- Where a session of this size and runtime goes; takes the place of toolhost_place, which the release before still asks, under the same
-- lock. Verdicts: `placed`; `no_host` when no host is alive (it may wait for one); and when it is refused, by what would have to change
-- first: `cordoned` (no host is open), `too_large` (for any host), `no_runtime`, `engine_down` (the engines of all that could take it),
-- `full`.
--
-- The host with the largest free part of its memory gets it; the host of the asking process has a fifth of a lead, as a session there
-- starts without a detour.
CREATE FUNCTION toolhost_find_place(want_cpus double precision, want_memory_mb bigint, want_disk_mb bigint, want_runtime text, asking uuid)
RETURNS TABLE (verdict text, host uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    home uuid;
    alive boolean;
    open boolean;
    fitting boolean;
    suited boolean;
    working boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(7450219373);
    SELECT w.host_id INTO home FROM workers w
        WHERE w.id = asking AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining;
    SELECT coalesce(bool_or(true), false), coalesce(bool_or(c.is_open), false), coalesce(bool_or(c.is_open AND c.fits), false),
        coalesce(bool_or(c.is_open AND c.fits AND c.suits), false),
        coalesce(bool_or(c.is_open AND c.fits AND c.suits AND c.works), false),
        (array_agg(c.host_id ORDER BY c.free + CASE WHEN c.host_id = home THEN 0.2 ELSE 0 END DESC, c.host_id)
            FILTER (WHERE c.is_open AND c.fits AND c.suits AND c.works AND c.has_room))[1]
        INTO alive, open, fitting, suited, working, host
        FROM (
            SELECT l.host_id, l.schedule = 'open' AS is_open,
                coalesce(1 - (l.pool_memory_mb + l.used_memory_mb)::double precision / nullif(l.memory_mb, 0), 1) AS free,
                (l.cpus IS NULL OR l.pool_cpus + want_cpus <= l.cpus)
                    AND (l.memory_mb IS NULL OR l.pool_memory_mb + want_memory_mb <= l.memory_mb)
                    AND (l.disk_mb IS NULL OR l.pool_disk_mb + want_disk_mb <= l.disk_mb)
                    AND (l.sandboxes IS NULL OR l.pool_sandboxes + 1 <= l.sandboxes) AS fits,
                (l.cpus IS NULL OR l.pool_cpus + l.used_cpus + want_cpus <= l.cpus)
                    AND (l.memory_mb IS NULL OR l.pool_memory_mb + l.used_memory_mb + want_memory_mb <= l.memory_mb)
                    AND (l.disk_mb IS NULL OR l.pool_disk_mb + l.used_disk_mb + want_disk_mb <= l.disk_mb)
                    AND (l.sandboxes IS NULL OR l.pool_sandboxes + l.sessions + 1 <= l.sandboxes)
                    AND (w.sessions IS NULL OR l.sessions + 1 <= w.sessions) AS has_room,
                w.suits, w.works
            FROM toolhost_host_load() l
            CROSS JOIN LATERAL (
                SELECT CASE WHEN count(*) = count(w.sessions) THEN sum(w.sessions) END AS sessions,
                    bool_or(w.makes_sandboxes) AS works,
                    bool_or(want_runtime IS NULL OR w.runtimes IS NULL OR want_runtime = ANY (w.runtimes)) AS suits
                FROM workers w
                WHERE w.host_id = l.host_id AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining) w
            WHERE l.workers > 0) c;
    verdict := CASE WHEN host IS NOT NULL THEN 'placed' WHEN NOT alive THEN 'no_host' WHEN NOT open THEN 'cordoned'
        WHEN NOT fitting THEN 'too_large' WHEN NOT suited THEN 'no_runtime' WHEN NOT working THEN 'engine_down' ELSE 'full' END;
    RETURN NEXT;
END
$$;

-- Places sessions that were accepted while no host was alive, or whose host went away before it took them; takes the place of
-- toolhost_place_waiting.
CREATE FUNCTION toolhost_find_places(asking uuid, most integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    waiting record;
    place record;
    placed integer := 0;
BEGIN
    FOR waiting IN
        SELECT s.id, s.cpus, s.memory_mb, s.disk_mb, s.runtime, s.host_id FROM sessions s
        WHERE s.status = 'starting' AND s.worker_id IS NULL AND NOT s.end_requested
          AND (s.host_id IS NULL OR NOT EXISTS (SELECT FROM workers w WHERE w.host_id = s.host_id
              AND w.lease_expires_at > clock_timestamp() AND w.accepts_sessions AND NOT w.draining))
        ORDER BY s.id LIMIT most
    LOOP
        SELECT p.verdict, p.host INTO place
            FROM toolhost_find_place(waiting.cpus, waiting.memory_mb, waiting.disk_mb, waiting.runtime, asking) p;
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

-- As the system role, whoever asks: a tenant's role sees neither hosts nor the sessions of others.
GRANT CREATE ON SCHEMA public TO toolhost_system;
ALTER FUNCTION toolhost_find_place(double precision, bigint, bigint, text, uuid) OWNER TO toolhost_system;
-- widens: nothing; what goes was given right above, for the change of the owner
REVOKE CREATE ON SCHEMA public FROM toolhost_system;
REVOKE ALL ON FUNCTION toolhost_find_place(double precision, bigint, bigint, text, uuid), toolhost_find_places(uuid, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION toolhost_find_place(double precision, bigint, bigint, text, uuid) TO toolhost_app, toolhost_system;
GRANT EXECUTE ON FUNCTION toolhost_find_places(uuid, integer) TO toolhost_system;
