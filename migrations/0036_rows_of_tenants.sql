-- Rows of one tenant are found by index in every table: an erasure deletes them, and an export reads them by their keys.
CREATE INDEX sandboxes_of_tenant ON sandboxes (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX shells_of_tenant ON shells (tenant_id, id);
CREATE INDEX contexts_of_tenant ON contexts (tenant_id, id);
CREATE INDEX named_shells_of_tenant ON named_shells (tenant_id, session_id, name);
CREATE INDEX file_reads_of_tenant ON file_reads (tenant_id, session_id, path_hash);
CREATE INDEX file_versions_of_tenant ON file_versions (tenant_id, call_id, path_hash);
