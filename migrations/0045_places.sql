-- What 0039 lacked: a tenant that revokes a key of its own ends that key's shells.
GRANT UPDATE (end_wish) ON shells TO toolhost_app;

-- As before, but sizes that fit nowhere are not counted as tries: a worker with room for one session finds the one that fits it.
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
