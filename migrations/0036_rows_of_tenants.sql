-- Rows of one tenant are found by index in every table: an erasure deletes them, and an export reads them by their keys.
-- Writers wait while an index is made. Whoever has large tables makes them before the upgrade, with CONCURRENTLY and these names.
CREATE INDEX IF NOT EXISTS sandboxes_of_tenant ON sandboxes (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS shells_of_tenant ON shells (tenant_id, id);
CREATE INDEX IF NOT EXISTS contexts_of_tenant ON contexts (tenant_id, id);
CREATE INDEX IF NOT EXISTS named_shells_of_tenant ON named_shells (tenant_id, session_id, name);
CREATE INDEX IF NOT EXISTS file_reads_of_tenant ON file_reads (tenant_id, session_id, path_hash);
CREATE INDEX IF NOT EXISTS file_versions_of_tenant ON file_versions (tenant_id, call_id, path_hash);
