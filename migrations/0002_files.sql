-- What a session knows of its files: which version of each it has seen, and what they were before it changed them.
--
-- Paths may be longer than an index takes, so the keys have their SHA-256.

CREATE TABLE file_reads (
    tenant_id uuid NOT NULL,
    session_id uuid NOT NULL,
    path_hash bytea NOT NULL,
    path text NOT NULL,
    -- Null when the file was not read to its end.
    sha256 bytea,
    size_bytes bigint NOT NULL,
    -- Null when only the content is known.
    modified_ms bigint,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (session_id, path_hash),
    CONSTRAINT file_reads_session_of_tenant FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id),
    CONSTRAINT file_reads_hash_length CHECK (octet_length(path_hash) = 32 AND octet_length(sha256) = 32)
);

CREATE TABLE file_versions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id uuid NOT NULL,
    session_id uuid NOT NULL,
    path_hash bytea NOT NULL,
    path text NOT NULL,
    -- The call that changed the file; one changes each file once.
    call_id uuid NOT NULL,
    -- planned before the file is touched, so that a call that is run again starts from the same content.
    state text NOT NULL DEFAULT 'planned',
    before text NOT NULL,
    before_sha256 bytea,
    before_bytes bytea,
    after_sha256 bytea,
    undone_by uuid,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT file_versions_session_of_tenant FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id),
    CONSTRAINT file_versions_one_per_call UNIQUE (call_id, path_hash),
    CONSTRAINT file_versions_state_known CHECK (state IN ('planned', 'made', 'undone')),
    CONSTRAINT file_versions_before_known CHECK (before IN ('absent', 'content', 'not_kept')),
    CONSTRAINT file_versions_content_is_whole CHECK ((before = 'content') = (before_bytes IS NOT NULL AND before_sha256 IS NOT NULL)),
    CONSTRAINT file_versions_made_has_after CHECK (state = 'planned' OR after_sha256 IS NOT NULL),
    CONSTRAINT file_versions_undone_by_someone CHECK ((state = 'undone') = (undone_by IS NOT NULL))
);
CREATE INDEX file_versions_by_file ON file_versions (session_id, path_hash, id);

GRANT SELECT, INSERT, UPDATE, DELETE ON file_reads, file_versions TO toolhost_system;
GRANT SELECT ON file_reads, file_versions TO toolhost_app;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['file_reads', 'file_versions'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY app_sees_its_tenant ON %I TO toolhost_app
            USING (tenant_id = toolhost_tenant()) WITH CHECK (tenant_id = toolhost_tenant())', name);
        EXECUTE format('CREATE POLICY system_sees_all ON %I TO toolhost_system USING (true) WITH CHECK (true)', name);
    END LOOP;
END
$$;
