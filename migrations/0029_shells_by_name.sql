-- Shells that began as a named shell, and the count of a tenant's running shells that is asked before each start.

ALTER TABLE shells ADD COLUMN name text CONSTRAINT shells_name_short CHECK (octet_length(name) BETWEEN 1 AND 64);
CREATE INDEX shells_running_of_tenant ON shells (tenant_id) WHERE status = 'running';
