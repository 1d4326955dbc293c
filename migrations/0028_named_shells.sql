-- Named shells: what each is between two commands, as a script of bash that makes it so again.

CREATE TABLE named_shells (
    -- One life of a name: deleted and used again it has another.
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    session_id uuid NOT NULL,
    name text NOT NULL,
    cwd text NOT NULL,
    -- Null until a command has left something.
    state text,
    options text NOT NULL DEFAULT '',
    -- The call that left it so, and how many resets the session had had by then.
    left_by uuid,
    reset_done integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT named_shells_one_of_a_name UNIQUE (session_id, name),
    CONSTRAINT named_shells_session_of_tenant FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CONSTRAINT named_shells_name_short CHECK (octet_length(name) BETWEEN 1 AND 64),
    CONSTRAINT named_shells_state_bounded CHECK (octet_length(state) <= 1048576 AND octet_length(options) <= 16384 AND octet_length(cwd) <= 16384)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON named_shells TO toolhost_system;
-- The state may hold what a tenant exported: who asks over the API sees that there is a shell, and no more of it.
GRANT SELECT (id, tenant_id, session_id, name, cwd, left_by, reset_done, created_at, changed_at), DELETE ON named_shells TO toolhost_app;
ALTER TABLE named_shells ENABLE ROW LEVEL SECURITY;
ALTER TABLE named_shells FORCE ROW LEVEL SECURITY;
CREATE POLICY app_sees_its_tenant ON named_shells TO toolhost_app
    USING (tenant_id = toolhost_tenant()) WITH CHECK (tenant_id = toolhost_tenant());
CREATE POLICY system_sees_all ON named_shells TO toolhost_system USING (true) WITH CHECK (true);
