-- Access: roles that tenants define, keys with a role and in rotation, why a call was cancelled, and what a tenant has stored.
-- A binary from before this migration goes on working: it knows no roles, and a key with a role has no scopes for it.

CREATE TABLE roles (
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    name text NOT NULL,
    description text NOT NULL DEFAULT '',
    scopes text[] NOT NULL,
    policy jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, name),
    CONSTRAINT roles_name_form CHECK (name ~ '^[a-z][a-z0-9_-]{0,49}$'),
    -- The given roles are no rows, and nobody may pass for one of them.
    CONSTRAINT roles_name_not_given CHECK (name NOT IN ('admin', 'developer', 'viewer', 'auditor', 'operator')),
    CONSTRAINT roles_are_below_operators CHECK (NOT 'operator' = ANY (scopes)),
    CONSTRAINT roles_description_length CHECK (char_length(description) <= 500)
);

-- The name of a role, given or the tenant's own. Its scopes are looked up whenever the key is checked.
ALTER TABLE api_keys ADD COLUMN role text;
-- The key that took its place. Until `expires_at` both are valid.
ALTER TABLE api_keys ADD COLUMN rotated_to uuid REFERENCES api_keys (id);
ALTER TABLE api_keys ADD CONSTRAINT api_keys_role_is_below_operators CHECK (role IS NULL OR tenant_id IS NOT NULL) NOT VALID;

-- Who asked for a call's end, when it was not its caller: `key_revoked`, `tenant_suspended`.
ALTER TABLE calls ADD COLUMN cancel_reason text;

-- What tenants have stored, by kind and by the day (UTC) whose retention it follows. Counted as it is written, and exactly again
-- from time to time.
CREATE TABLE stored_bytes (
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    kind text NOT NULL,
    day date NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (tenant_id, kind, day),
    CONSTRAINT stored_bytes_kind_known CHECK (kind IN ('output', 'artifacts'))
);
CREATE INDEX stored_bytes_by_day ON stored_bytes (kind, day);

GRANT SELECT, INSERT, UPDATE, DELETE ON roles, stored_bytes TO toolhost_system;
GRANT SELECT, INSERT, UPDATE, DELETE ON roles TO toolhost_app;
GRANT SELECT, INSERT, UPDATE ON stored_bytes TO toolhost_app;
GRANT SELECT (role, rotated_to), UPDATE (expires_at, rotated_to) ON api_keys TO toolhost_app;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['roles', 'stored_bytes'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY app_sees_its_tenant ON %I TO toolhost_app
            USING (tenant_id = toolhost_tenant()) WITH CHECK (tenant_id = toolhost_tenant())', name);
        EXECUTE format('CREATE POLICY system_sees_all ON %I TO toolhost_system USING (true) WITH CHECK (true)', name);
    END LOOP;
END
$$;
