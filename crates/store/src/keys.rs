//! API keys: made once, shown once, kept as a keyed hash, replaced with an overlap, revoked for good.

use chrono::{DateTime, Utc};
use domain::policy::Policy;
use domain::{KeyId, OperatorContext, Principal, Scope, TenantContext, TenantId, limits};

use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::cancelling::{Cancelled, Withdrawn, withdraw};
use crate::credential::PlainKey;
use crate::db::{Conn, Lock, Statement, read, read_found, unknown_word};
use crate::error::{constraint, translate};
use crate::json::{storable, storable_text};
use crate::roles::Keeper;
use crate::{AuditRow, Listed, Page, Result, Store, StoreError};

const CREATE: &str = "create key";
const LIST: &str = "list keys";
const REVOKE: &str = "revoke key";
const ROTATE: &str = "rotate key";

macro_rules! key_columns {
    () => {
        "id, tenant_id, name, scopes, role, policy, created_at, expires_at, revoked_at, last_used_at, rotated_to"
    };
}

/// One key, as its row says; never its secret.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    /// Its id; also the readable part of the key itself.
    pub id: KeyId,
    /// Whose it is; `None` for an operator's.
    pub tenant_id: Option<TenantId>,
    /// A name for people.
    pub name: String,
    /// What it may do; with a role and empty, what the role may, else what both may.
    pub scopes: Vec<Scope>,
    /// Its role, given or the tenant's own.
    pub role: Option<String>,
    /// Its own narrowing of policy.
    pub policy: Option<Policy>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it stops being valid.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// When it was last used, to the minute or so.
    pub last_used_at: Option<DateTime<Utc>>,
    /// The key that took its place.
    pub rotated_to: Option<KeyId>,
}

/// A key to be created.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    /// 1 to 100 characters.
    pub name: String,
    /// What it may do; never [`Scope::Operator`]. Empty with a role: what the role may.
    pub scopes: Vec<Scope>,
    /// Its role; the caller has checked that there is one of this name.
    pub role: Option<String>,
    /// Its own narrowing of policy.
    pub policy: Option<Policy>,
    /// When it stops being valid.
    pub expires_at: Option<DateTime<Utc>>,
}

/// How a key is to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Until when the old key is valid beside the new one.
    pub old_until: DateTime<Utc>,
    /// When the new one stops being valid; when the old one would have, if nothing is said.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it does at the latest, whatever the old one says.
    pub latest: Option<DateTime<Utc>>,
}

/// Counts a tenant's keys that are valid, with those that are being replaced (`$2`) or without. Under the lock of [`count_keys`].
const COUNT: &str = "SELECT count(*) AS n FROM api_keys WHERE tenant_id = $1 AND revoked_at IS NULL
    AND coalesce(expires_at > clock_timestamp(), true) AND (rotated_to IS NOT NULL) = $2";

impl Store {
    /// Makes a key for a tenant and returns its text, once. [`StoreError::NotFound`] when there is no such tenant.
    pub async fn create_key(
        &self,
        operator: &OperatorContext,
        tenant_id: TenantId,
        new: NewKey,
    ) -> Result<(ApiKey, PlainKey)> {
        let conn = self.db().system_transaction(CREATE).await?;
        self.insert_key(conn, operator.principal(), Some(tenant_id), new).await
    }

    /// Makes a key for the caller's own tenant. Its scopes and policy must be within the caller's; faces check that.
    pub async fn create_own_key(&self, context: &TenantContext, new: NewKey) -> Result<(ApiKey, PlainKey)> {
        let conn = self.db().tenant(CREATE, context).await?;
        self.insert_key(conn, context.principal(), Some(context.tenant_id()), new).await
    }

    /// Makes a key above tenants.
    pub async fn create_operator_key(
        &self,
        operator: &OperatorContext,
        name: &str,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<(ApiKey, PlainKey)> {
        let new =
            NewKey { name: name.to_owned(), scopes: vec![Scope::Operator], expires_at, ..NewKey::default() };
        let conn = self.db().system_transaction(CREATE).await?;
        self.insert_key(conn, operator.principal(), None, new).await
    }

    /// Keys of a tenant, or of the operators (`None`), newest first.
    pub async fn list_keys(
        &self,
        _operator: &OperatorContext,
        tenant_id: Option<TenantId>,
        page: Page,
    ) -> Result<Listed<ApiKey>> {
        let conn = self.db().system(LIST).await?;
        listed(conn, tenant_id, page).await
    }

    /// Keys of the caller's tenant, newest first.
    pub async fn list_own_keys(&self, context: &TenantContext, page: Page) -> Result<Listed<ApiKey>> {
        let conn = self.db().tenant(LIST, context).await?;
        listed(conn, Some(context.tenant_id()), page).await
    }

    /// One key of a keeper's tenant.
    pub async fn get_key(&self, keeper: Keeper<'_>, id: KeyId) -> Result<ApiKey> {
        const GET: &str = "get key";
        let mut conn = self.keeping(GET, keeper).await?;
        let statement = sqlx::query(concat!(
            "SELECT ",
            key_columns!(),
            " FROM api_keys WHERE id = $1 AND tenant_id = $2"
        ));
        let row = conn.optional(statement.bind(id.uuid()).bind(keeper.tenant_id().uuid())).await?;
        conn.end().await?;
        read_found(GET, row, key)
    }

    /// Makes a key that takes another's place, with its name, scopes, role and policy. Both are valid until the old one's time is
    /// over. [`StoreError::Conflict`] when the old one is not valid any more, or was replaced already.
    pub async fn rotate_key(
        &self,
        keeper: Keeper<'_>,
        id: KeyId,
        rotation: Rotation,
    ) -> Result<(ApiKey, PlainKey)> {
        let conn = self.keeping(ROTATE, keeper).await?;
        self.rotate(conn, keeper.principal(), Some(keeper.tenant_id()), id, rotation).await
    }

    /// The same for a key above tenants.
    pub async fn rotate_operator_key(
        &self,
        operator: &OperatorContext,
        id: KeyId,
        rotation: Rotation,
    ) -> Result<(ApiKey, PlainKey)> {
        let conn = self.db().system_transaction(ROTATE).await?;
        self.rotate(conn, operator.principal(), None, id, rotation).await
    }

    async fn rotate(
        &self,
        mut conn: Conn,
        principal: &Principal,
        tenant_id: Option<TenantId>,
        id: KeyId,
        rotation: Rotation,
    ) -> Result<(ApiKey, PlainKey)> {
        let next: KeyId = self.clock().new_id();
        let plain = PlainKey::generate(next);
        if let Some(tenant_id) = tenant_id
            && count_keys(&mut conn, ROTATE, tenant_id, Counted::BeingReplaced).await? >= limits::TENANT_KEYS
        {
            conn.undo().await?;
            let message =
                "too many of the tenant's keys are being replaced: revoke those that have a successor";
            return Err(StoreError::Conflict { operation: ROTATE, message });
        }
        // The key that is there first gives everything but its secret; its row is locked, so that it is replaced once.
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT revoked_at IS NULL AND rotated_to IS NULL
                         AND coalesce(expires_at > clock_timestamp(), true) AS valid
                     FROM api_keys WHERE id = $1 AND tenant_id IS NOT DISTINCT FROM $2 FOR UPDATE",
                )
                .bind(id.uuid())
                .bind(tenant_id.map(TenantId::uuid)),
            )
            .await?;
        if !read_found(ROTATE, row, |row| row.try_get::<bool, _>("valid"))? {
            conn.undo().await?;
            let message = "the key is not valid any more, or was rotated already";
            return Err(StoreError::Conflict { operation: ROTATE, message });
        }
        let row = conn
            .try_one(
                sqlx::query(concat!(
                    "INSERT INTO api_keys (id, tenant_id, name, secret_hash, scopes, role, policy, expires_at)
                     SELECT $2, k.tenant_id, k.name, $3, k.scopes, k.role, k.policy, least(coalesce($4, k.expires_at), $5)
                     FROM api_keys k WHERE k.id = $1
                     RETURNING ",
                    key_columns!()
                ))
                .bind(id.uuid())
                .bind(next.uuid())
                .bind(self.pepper().hash(&plain).to_vec())
                .bind(rotation.expires_at)
                .bind(rotation.latest),
            )
            .await?
            .map_err(refusal)?;
        conn.execute(
            sqlx::query(
                "UPDATE api_keys SET rotated_to = $2,
                     expires_at = least(expires_at, CASE WHEN $4 THEN clock_timestamp() ELSE $3 END) WHERE id = $1",
            )
            .bind(id.uuid())
            .bind(next.uuid())
            .bind(rotation.old_until)
            // At once is at once on the database's own clock, which this process's may be a little ahead of.
            .bind(rotation.old_until <= self.clock().now()),
        )
        .await?;
        let details = json!({"by": next, "until": rotation.old_until});
        conn.audit(tenant_id, principal, &AuditRow::done("key.rotate", id).details(details)).await?;
        conn.end().await?;
        self.forget_key(id);
        Ok((key(&row).map_err(|error| translate(ROTATE, error))?, plain))
    }

    /// Revokes any key. Every process refuses it within seconds, the calls that it made are cancelled, and the shells that it started end.
    /// Revoking twice is no error.
    pub async fn revoke_key(&self, operator: &OperatorContext, id: KeyId) -> Result<ApiKey> {
        let conn = self.db().system_transaction(REVOKE).await?;
        let statement = sqlx::query(concat!(
            "UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = $1 RETURNING ",
            key_columns!()
        ))
        .bind(id.uuid());
        self.revoke(conn, operator.principal(), statement).await
    }

    /// Revokes a key of the caller's tenant.
    pub async fn revoke_own_key(&self, context: &TenantContext, id: KeyId) -> Result<ApiKey> {
        let conn = self.db().tenant(REVOKE, context).await?;
        let statement = sqlx::query(concat!(
            "UPDATE api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
             WHERE id = $1 AND tenant_id = $2 RETURNING ",
            key_columns!()
        ))
        .bind(id.uuid())
        .bind(context.tenant_id().uuid());
        self.revoke(conn, context.principal(), statement).await
    }

    async fn insert_key(
        &self,
        mut conn: Conn,
        principal: &Principal,
        tenant_id: Option<TenantId>,
        new: NewKey,
    ) -> Result<(ApiKey, PlainKey)> {
        storable_text(CREATE, "name", &new.name)?;
        if let Some(tenant_id) = tenant_id
            && count_keys(&mut conn, CREATE, tenant_id, Counted::Lasting).await? >= limits::TENANT_KEYS
        {
            conn.undo().await?;
            let message = "the tenant has as many keys as it may: revoke those that are not used";
            return Err(StoreError::Conflict { operation: CREATE, message });
        }
        let id: KeyId = self.clock().new_id();
        let plain = PlainKey::generate(id);
        let policy = new.policy.as_ref().map(|policy| storable(CREATE, "policy", policy)).transpose()?;
        let scopes: Vec<&str> = new.scopes.iter().map(|scope| scope.as_str()).collect();
        let inserted = conn
            .try_one(
                sqlx::query(concat!(
                    "INSERT INTO api_keys (id, tenant_id, name, secret_hash, scopes, policy, expires_at, role)
                     VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8) RETURNING ",
                    key_columns!()
                ))
                .bind(id.uuid())
                .bind(tenant_id.map(TenantId::uuid))
                .bind(&new.name)
                .bind(self.pepper().hash(&plain).to_vec())
                .bind(scopes)
                .bind(policy)
                .bind(new.expires_at)
                .bind(&new.role),
            )
            .await?;
        let row = match inserted {
            Ok(row) => row,
            Err(error) => {
                conn.undo().await?;
                return Err(refusal(error));
            }
        };
        let details = json!({"scopes": new.scopes, "role": new.role, "expires_at": new.expires_at});
        conn.audit(tenant_id, principal, &AuditRow::done("key.create", id).details(details)).await?;
        conn.end().await?;
        Ok((key(&row).map_err(|error| translate(CREATE, error))?, plain))
    }

    async fn revoke(
        &self,
        mut conn: Conn,
        principal: &Principal,
        statement: Statement<'_>,
    ) -> Result<ApiKey> {
        let row = conn.optional(statement).await?;
        let found = row.as_ref().map(key).transpose().map_err(|error| translate(REVOKE, error))?;
        let mut cancelled = Cancelled::default();
        if let Some(key) = &found {
            conn.audit(key.tenant_id, principal, &AuditRow::done("key.revoke", key.id)).await?;
            if let Some(tenant_id) = key.tenant_id {
                cancelled = withdraw(&mut conn, REVOKE, &[tenant_id], Withdrawn::Keys(&[key.id])).await?;
            }
        }
        conn.end().await?;
        cancelled.tell(self.bus());
        let key = found.ok_or(StoreError::NotFound { operation: REVOKE })?;
        self.forget_key(key.id);
        Ok(key)
    }
}

/// Which keys are counted against a tenant's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    Lasting,
    BeingReplaced,
}

/// How many there are, under a lock until the end of the transaction: no other transaction adds one meanwhile.
async fn count_keys(
    conn: &mut Conn,
    operation: &'static str,
    tenant_id: TenantId,
    which: Counted,
) -> Result<u32> {
    conn.lock(Lock::Keys, tenant_id.uuid()).await?;
    let statement = sqlx::query(COUNT).bind(tenant_id.uuid()).bind(which == Counted::BeingReplaced);
    let row = conn.one(statement).await?;
    let count = row.try_get::<i64, _>("n").map_err(|error| translate(operation, error))?;
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

fn refusal(error: sqlx::Error) -> StoreError {
    let message = match constraint(&error) {
        Some("api_keys_tenant_id_fkey") => return StoreError::NotFound { operation: CREATE },
        Some("api_keys_operator_has_no_tenant") => "a tenant's key cannot have the scope `operator`",
        Some("tenant_is_not_erased") => "the tenant is being erased, or was",
        Some("api_keys_name_length") => "a name has 1 to 100 characters",
        _ => return translate(CREATE, error),
    };
    StoreError::Conflict { operation: CREATE, message }
}

async fn listed(mut conn: Conn, tenant_id: Option<TenantId>, page: Page) -> Result<Listed<ApiKey>> {
    let rows = conn
        .all(
            sqlx::query(concat!(
                "SELECT ",
                key_columns!(),
                " FROM api_keys WHERE tenant_id IS NOT DISTINCT FROM $1 AND ($2::uuid IS NULL OR id < $2)
                 ORDER BY id DESC LIMIT $3"
            ))
            .bind(tenant_id.map(TenantId::uuid))
            .bind(page.after)
            .bind(page.fetch()),
        )
        .await?;
    conn.end().await?;
    Ok(page.cut(read(LIST, &rows, key)?, |key| key.id.uuid()))
}

fn key(row: &PgRow) -> Result<ApiKey, sqlx::Error> {
    Ok(ApiKey {
        id: KeyId::from_uuid(row.try_get("id")?),
        tenant_id: row.try_get::<Option<Uuid>, _>("tenant_id")?.map(TenantId::from_uuid),
        name: row.try_get("name")?,
        scopes: scopes(row)?,
        role: row.try_get("role")?,
        policy: row.try_get::<Option<Json<Policy>>, _>("policy")?.map(|policy| policy.0),
        created_at: row.try_get("created_at")?,
        expires_at: row.try_get("expires_at")?,
        revoked_at: row.try_get("revoked_at")?,
        last_used_at: row.try_get("last_used_at")?,
        rotated_to: row.try_get::<Option<Uuid>, _>("rotated_to")?.map(KeyId::from_uuid),
    })
}

pub(crate) fn scopes(row: &PgRow) -> Result<Vec<Scope>, sqlx::Error> {
    scopes_of(row.try_get("scopes")?)
}

pub(crate) fn scopes_of(words: Vec<String>) -> Result<Vec<Scope>, sqlx::Error> {
    words.iter().map(|word| word.parse().map_err(|_| unknown_word("api_keys.scopes"))).collect()
}
