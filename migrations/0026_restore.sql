-- Which Postgres cluster and database this is, and when it was last restored from a backup. Sandboxes that were made before that and have
-- no row may serve sessions that the backup does not know: they are left alone.
ALTER TABLE installation
    ADD COLUMN cluster text,
    ADD COLUMN restored_at timestamptz;
GRANT UPDATE (cluster, restored_at) ON installation TO toolhost_system;
