-- Erasing tenants: one row from the request to the receipt, which stays; and what may then be taken out of the audit trail.
-- A binary from before this migration goes on working: it knows of no erasure, and one that has begun waits for a newer worker.

CREATE TABLE tenant_erasures (
    tenant_id uuid PRIMARY KEY REFERENCES tenants (id),
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- `ending`: its sessions and sandboxes end. `deleting`: bytes and rows go, batch by batch. `trail`: its audit trail loses what it
    -- says of anybody. `done`: there is a receipt.
    state text NOT NULL DEFAULT 'ending',
    -- Rows deleted so far by table, counted in the transactions that delete them.
    deleted jsonb NOT NULL DEFAULT '{}',
    -- Bytes removed from the object store so far.
    object_bytes bigint NOT NULL DEFAULT 0,
    finished_at timestamptz,
    receipt jsonb,
    CONSTRAINT tenant_erasures_state_known CHECK (state IN ('ending', 'deleting', 'trail', 'done')),
    CONSTRAINT tenant_erasures_end_is_whole CHECK ((state = 'done') = (receipt IS NOT NULL) AND (state = 'done') = (finished_at IS NOT NULL))
);
CREATE INDEX tenant_erasures_open ON tenant_erasures (requested_at) WHERE state <> 'done';

-- What of a trail has lost its content, and the signed digest of what it keeps: the hash of every link, and when what was done.
CREATE TABLE audit_erasures (
    chain uuid PRIMARY KEY,
    -- Links 1 to this one.
    seq bigint NOT NULL,
    digest bytea NOT NULL,
    key_id text NOT NULL,
    signature bytea NOT NULL,
    -- What was wrong with the trail when the digest was signed: afterwards nobody could tell.
    findings bigint NOT NULL,
    -- How far the rows behind the links are without content.
    emptied bigint NOT NULL DEFAULT 0,
    CONSTRAINT audit_erasures_digest_length CHECK (octet_length(digest) = 32 AND octet_length(signature) = 32),
    CONSTRAINT audit_erasures_within CHECK (emptied BETWEEN 0 AND seq)
);

GRANT SELECT, INSERT, UPDATE ON tenant_erasures, audit_erasures TO toolhost_system;
GRANT UPDATE (principal, target, reason, details) ON audit_log TO toolhost_system;
ALTER TABLE tenant_erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_erasures FORCE ROW LEVEL SECURITY;
ALTER TABLE audit_erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit_erasures FORCE ROW LEVEL SECURITY;
CREATE POLICY system_sees_all ON tenant_erasures TO toolhost_system USING (true) WITH CHECK (true);
CREATE POLICY system_sees_all ON audit_erasures TO toolhost_system USING (true) WITH CHECK (true);

-- The one change of a row that there is: all that it says of anybody goes, at once and for ever, once a digest of the chain is signed.
CREATE FUNCTION audit_log_is_only_emptied() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF (NEW.id, NEW.tenant_id, NEW.at, NEW.action, NEW.allowed, NEW.xid)
            IS NOT DISTINCT FROM (OLD.id, OLD.tenant_id, OLD.at, OLD.action, OLD.allowed, OLD.xid)
        AND NEW.principal = '{"key_id": null, "name": "erased", "address": null}'
        AND NEW.target IS NULL AND NEW.reason IS NULL AND NEW.details = '{}'
        AND EXISTS (SELECT FROM audit_erasures e JOIN audit_chain c ON c.chain = e.chain AND c.seq <= e.seq
            WHERE e.chain = OLD.tenant_id AND c.entry_id = OLD.id)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only';
END
$$;
DROP TRIGGER audit_log_is_append_only ON audit_log;
CREATE TRIGGER audit_log_is_append_only BEFORE DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();
CREATE TRIGGER audit_log_is_only_emptied BEFORE UPDATE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION audit_log_is_only_emptied();

-- Whoever is being erased gets no new credentials and no new sessions, and does not come back.
CREATE FUNCTION tenant_is_not_erased() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp
AS $$
DECLARE
    of uuid := CASE WHEN TG_TABLE_NAME = 'tenants' THEN (to_jsonb(NEW) ->> 'id')::uuid ELSE (to_jsonb(NEW) ->> 'tenant_id')::uuid END;
BEGIN
    IF EXISTS (SELECT FROM tenant_erasures e WHERE e.tenant_id = of) THEN
        RAISE EXCEPTION 'the tenant is being erased, or was' USING ERRCODE = 'check_violation', CONSTRAINT = 'tenant_is_not_erased';
    END IF;
    RETURN NEW;
END
$$;
GRANT CREATE ON SCHEMA public TO toolhost_system;
ALTER FUNCTION tenant_is_not_erased() OWNER TO toolhost_system;
REVOKE CREATE ON SCHEMA public FROM toolhost_system;
CREATE TRIGGER tenant_is_not_erased BEFORE UPDATE OF status ON tenants
    FOR EACH ROW WHEN (NEW.status <> 'suspended') EXECUTE FUNCTION tenant_is_not_erased();
CREATE TRIGGER tenant_is_not_erased BEFORE INSERT ON api_keys FOR EACH ROW EXECUTE FUNCTION tenant_is_not_erased();
CREATE TRIGGER tenant_is_not_erased BEFORE INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION tenant_is_not_erased();
CREATE TRIGGER tenant_is_not_erased BEFORE INSERT OR UPDATE ON roles FOR EACH ROW EXECUTE FUNCTION tenant_is_not_erased();
