-- The audit trail can be trusted: chained by one sealer a moment after the rows were written, heads signed.
--
-- Rows stay unchained in the transaction of their decision, so that the chain serialises nobody. The sealer takes
-- rows whose transactions are over, which their xid tells exactly; the order of ids would not, as a smaller id may
-- be committed after a larger one. Rows from before this migration get its own xid and are sealed in the order of ids.
ALTER TABLE audit_log ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX audit_log_unsealed ON audit_log (xid, id);
CREATE INDEX audit_log_by_time ON audit_log (tenant_id, at, id);
DROP INDEX audit_log_by_tenant;

-- One link for each row. A chain is a tenant's, or the installation's own (all zeros) for rows above tenants.
CREATE TABLE audit_chain (
    chain uuid NOT NULL,
    seq bigint NOT NULL,
    entry_id bigint NOT NULL,
    -- SHA-256 over the previous link's hash and the row.
    hash bytea NOT NULL,
    PRIMARY KEY (chain, seq),
    CONSTRAINT audit_chain_entry_once UNIQUE (entry_id),
    CONSTRAINT audit_chain_seq_positive CHECK (seq > 0),
    CONSTRAINT audit_chain_hash_length CHECK (octet_length(hash) = 32)
);
CREATE TRIGGER audit_chain_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_chain
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();

-- Where each chain ends, signed with a key that the database does not know.
CREATE TABLE audit_heads (
    chain uuid PRIMARY KEY,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    signed_at timestamptz NOT NULL,
    key_id text NOT NULL,
    signature bytea NOT NULL,
    CONSTRAINT audit_heads_hash_length CHECK (octet_length(hash) = 32)
);

-- How far the sealer has come. Another cluster (a restored dump) counts transactions anew, and the sealer then looks
-- for unsealed rows everywhere once.
CREATE TABLE audit_sealer (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster text NOT NULL DEFAULT '',
    xid xid8 NOT NULL DEFAULT '0',
    entry_id bigint NOT NULL DEFAULT 0
);
INSERT INTO audit_sealer DEFAULT VALUES;

GRANT SELECT, INSERT ON audit_chain TO toolhost_system;
GRANT SELECT, INSERT, UPDATE ON audit_heads TO toolhost_system;
GRANT SELECT, UPDATE ON audit_sealer TO toolhost_system;
GRANT SELECT ON audit_chain TO toolhost_app;

ALTER TABLE audit_chain ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit_chain FORCE ROW LEVEL SECURITY;
CREATE POLICY app_sees_its_tenant ON audit_chain FOR SELECT TO toolhost_app USING (chain = toolhost_tenant());
CREATE POLICY system_sees_all ON audit_chain TO toolhost_system USING (true) WITH CHECK (true);
