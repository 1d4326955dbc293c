-- Contexts: interpreters of a session whose state lasts from call to call.

CREATE TABLE contexts (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    session_id uuid NOT NULL,
    name text,
    cwd text NOT NULL,
    env jsonb NOT NULL DEFAULT '{}',
    metadata jsonb NOT NULL DEFAULT '{}',
    -- How many interpreters it has had; the latest is known to the agent under this number.
    interpreter integer NOT NULL DEFAULT 0,
    -- The sandbox of its session in which the latest runs; null when it has ended.
    generation integer,
    -- How the latest interpreter that ended took its state away, and which it was.
    lost_reason text,
    lost_interpreter integer,
    lost_at timestamptz,
    -- What callers have asked for, and what has been done about it.
    interrupts integer NOT NULL DEFAULT 0,
    interrupts_done integer NOT NULL DEFAULT 0,
    restarts integer NOT NULL DEFAULT 0,
    restarts_done integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz,
    CONSTRAINT contexts_session_of_tenant FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CONSTRAINT contexts_lost_is_whole CHECK ((lost_reason IS NULL) = (lost_at IS NULL) AND (lost_reason IS NULL) = (lost_interpreter IS NULL)),
    CONSTRAINT contexts_done_was_asked CHECK (interrupts_done <= interrupts AND restarts_done <= restarts)
);
CREATE INDEX contexts_by_session ON contexts (session_id, id);
CREATE UNIQUE INDEX contexts_one_of_a_name ON contexts (session_id, name) WHERE deleted_at IS NULL;
-- What workers look for every second: few, and soon done.
CREATE INDEX contexts_wanting ON contexts (session_id)
    WHERE interrupts > interrupts_done OR restarts > restarts_done OR (deleted_at IS NOT NULL AND generation IS NOT NULL);

GRANT SELECT, INSERT, UPDATE, DELETE ON contexts TO toolhost_system;
GRANT SELECT, INSERT, UPDATE ON contexts TO toolhost_app;
ALTER TABLE contexts ENABLE ROW LEVEL SECURITY;
ALTER TABLE contexts FORCE ROW LEVEL SECURITY;
CREATE POLICY app_sees_its_tenant ON contexts TO toolhost_app
    USING (tenant_id = toolhost_tenant()) WITH CHECK (tenant_id = toolhost_tenant());
CREATE POLICY system_sees_all ON contexts TO toolhost_system USING (true) WITH CHECK (true);
