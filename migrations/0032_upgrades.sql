-- Which binaries the schema still carries: those that know at least the migration of this number. A migration that takes away or tightens
-- what an earlier release uses says so here; all others leave it alone.
ALTER TABLE installation ADD COLUMN needs_migration bigint NOT NULL DEFAULT 0;
