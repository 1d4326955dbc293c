-- Artifacts: files kept beyond their sandboxes. Rows here, bytes in the object store under <tenant>/<SHA-256>.
--
-- The row of an object is committed before its bytes are sent, and an artifact refers to it: so there is no artifact
-- without bytes, and bytes that no artifact has are known without listing the object store.

CREATE TABLE artifact_objects (
    tenant_id uuid NOT NULL REFERENCES tenants (id),
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    -- When somebody last wanted to store it: what is young may be about to get an artifact.
    touched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, sha256),
    CONSTRAINT artifact_objects_hash_length CHECK (octet_length(sha256) = 32),
    CONSTRAINT artifact_objects_size_known CHECK (size_bytes >= 0)
);
CREATE INDEX artifact_objects_by_age ON artifact_objects (touched_at);

-- What they take counts as stored, once for each content. At the end of the transaction, so that a sweep that waits for the
-- object store holds up nobody who stores.
CREATE FUNCTION artifact_objects_are_counted() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO stored_bytes (tenant_id, kind, day, bytes)
        VALUES (NEW.tenant_id, 'artifacts', DATE 'epoch', NEW.size_bytes)
        ON CONFLICT (tenant_id, kind, day) DO UPDATE SET bytes = stored_bytes.bytes + excluded.bytes;
    ELSE
        UPDATE stored_bytes SET bytes = greatest(bytes - OLD.size_bytes, 0)
        WHERE tenant_id = OLD.tenant_id AND kind = 'artifacts' AND day = DATE 'epoch';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER artifact_objects_are_counted AFTER INSERT OR DELETE ON artifact_objects
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION artifact_objects_are_counted();

-- No reference to the session or the call: an artifact outlives both.
CREATE TABLE artifacts (
    id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    session_id uuid NOT NULL,
    call_id uuid NOT NULL,
    -- What of the call it is; a call that is run again finds what it has saved already.
    origin text NOT NULL,
    name text NOT NULL,
    version integer NOT NULL,
    kind text NOT NULL,
    mime_type text NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 bytea NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT artifacts_object_of_tenant FOREIGN KEY (tenant_id, sha256) REFERENCES artifact_objects (tenant_id, sha256),
    CONSTRAINT artifacts_once_per_origin UNIQUE (call_id, origin),
    CONSTRAINT artifacts_version_once UNIQUE (session_id, name, version),
    CONSTRAINT artifacts_version_positive CHECK (version > 0),
    CONSTRAINT artifacts_name_length CHECK (char_length(name) BETWEEN 1 AND 255)
);
CREATE INDEX artifacts_by_tenant ON artifacts (tenant_id, id);
CREATE INDEX artifacts_by_object ON artifacts (tenant_id, sha256);

GRANT SELECT, INSERT, UPDATE, DELETE ON artifact_objects, artifacts TO toolhost_system;
GRANT SELECT ON artifact_objects TO toolhost_app;
GRANT SELECT, DELETE ON artifacts TO toolhost_app;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['artifact_objects', 'artifacts'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY app_sees_its_tenant ON %I TO toolhost_app
            USING (tenant_id = toolhost_tenant()) WITH CHECK (tenant_id = toolhost_tenant())', name);
        EXECUTE format('CREATE POLICY system_sees_all ON %I TO toolhost_system USING (true) WITH CHECK (true)', name);
    END LOOP;
END
$$;
