-- Wheels: built Python packages that a tenant keeps for its sessions. Rows here, bytes where those of artifacts are, under the same hash.
--
-- A sweep of the release before does not know that a wheel needs its object: the reference keeps it from removing one. That pass of the sweep
-- then fails, until its process is replaced, and nothing is lost.

CREATE TABLE wheels (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    -- In its one form (PEP 427, PEP 503); what is installed is found by it.
    file_name text NOT NULL,
    project text NOT NULL,
    version text NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When a session last got it.
    last_used_at timestamptz,
    CONSTRAINT wheels_object_of_tenant FOREIGN KEY (tenant_id, sha256) REFERENCES artifact_objects (tenant_id, sha256),
    CONSTRAINT wheels_name_once UNIQUE (tenant_id, file_name),
    CONSTRAINT wheels_name_form CHECK (char_length(file_name) <= 255 AND file_name ~ '^[a-z0-9][a-z0-9_]*-[0-9][a-z0-9._!+]*(-[a-z0-9][a-z0-9._]*){3,4}\.whl$')
);
CREATE INDEX wheels_by_tenant ON wheels (tenant_id, id);
CREATE INDEX wheels_by_object ON wheels (tenant_id, sha256);

GRANT SELECT, INSERT, UPDATE, DELETE ON wheels TO toolhost_system;
GRANT SELECT, INSERT, DELETE, UPDATE (last_used_at) ON wheels TO toolhost_app;
ALTER TABLE wheels ENABLE ROW LEVEL SECURITY;
ALTER TABLE wheels FORCE ROW LEVEL SECURITY;
CREATE POLICY app_sees_its_tenant ON wheels TO toolhost_app
    USING (tenant_id = toolhost_tenant()) WITH CHECK (tenant_id = toolhost_tenant());
CREATE POLICY system_sees_all ON wheels TO toolhost_system USING (true) WITH CHECK (true);
CREATE TRIGGER tenant_is_not_erased BEFORE INSERT ON wheels FOR EACH ROW EXECUTE FUNCTION tenant_is_not_erased();

-- Until now only workers stored content, under a session's fence; a tenant's own requests do now.
GRANT INSERT (tenant_id, sha256, size_bytes), UPDATE (touched_at) ON artifact_objects TO toolhost_app;
-- widens: nothing of the release before inserts here as toolhost_app
CREATE TRIGGER tenant_is_not_erased BEFORE INSERT ON artifact_objects
    FOR EACH ROW WHEN (current_user = 'toolhost_app') EXECUTE FUNCTION tenant_is_not_erased();
