//! Slots: a tenant's limit on running calls, granted to workers in blocks so that it holds without a row lock per call.
//!
//! # Design notes
//!
//! Grants of one tenant go one after another under an advisory lock, and only those of workers whose lease lives
//! count. A worker that died with slots gives them back by dying; one that revives its lease after an outage before it was
//! declared dead has kept its row, so the limit may be exceeded by its block for as long as its calls run, and no longer.

use domain::{TenantId, WorkerId};
use sqlx::Row;
use uuid::Uuid;

use crate::db::{read, signed};
use crate::error::translate;
use crate::{Result, Store};

impl Store {
    /// Asks for up to `want` more slots of a tenant, whose workers may have `limit` together. Returns how many were granted.
    pub async fn acquire_slots(
        &self,
        worker: WorkerId,
        tenant: TenantId,
        limit: u32,
        want: u32,
    ) -> Result<u32> {
        const OPERATION: &str = "acquire slots";
        let mut conn = self.db().system_transaction(OPERATION).await?;
        // A statement of its own, because the next one must see what was committed while it waited.
        conn.execute(
            sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1::text, 3))").bind(tenant.uuid()),
        )
        .await?;
        let row = conn
            .one(
                sqlx::query(
                    "WITH held AS (
                         SELECT coalesce(sum(t.granted), 0) AS n FROM tenant_slots t JOIN workers w ON w.id = t.worker_id
                         WHERE t.tenant_id = $2 AND (w.lease_expires_at > clock_timestamp() OR w.id = $1)
                     ), block AS (
                         SELECT greatest(0, least($4::bigint, $3::bigint - held.n))::integer AS n FROM held
                     ), granted AS (
                         INSERT INTO tenant_slots AS t (tenant_id, worker_id, granted)
                         SELECT $2, $1, block.n FROM block WHERE block.n > 0
                         ON CONFLICT (tenant_id, worker_id) DO UPDATE SET granted = t.granted + excluded.granted
                     )
                     SELECT n FROM block",
                )
                .bind(worker.uuid())
                .bind(tenant.uuid())
                .bind(i64::from(limit))
                .bind(i64::from(want)),
            )
            .await?;
        conn.end().await?;
        let granted: i32 = row.try_get("n").map_err(|error| translate(OPERATION, error))?;
        Ok(u32::try_from(granted).unwrap_or(0))
    }

    /// Gives slots back.
    pub async fn release_slots(&self, worker: WorkerId, tenant: TenantId, count: u32) -> Result<()> {
        let mut conn = self.db().system("release slots").await?;
        conn.execute(
            sqlx::query(
                "UPDATE tenant_slots SET granted = greatest(0, granted::bigint - $3)::integer
                 WHERE worker_id = $1 AND tenant_id = $2",
            )
            .bind(worker.uuid())
            .bind(tenant.uuid())
            .bind(signed(u64::from(count))),
        )
        .await?;
        conn.end().await
    }

    /// Slots that a worker holds, by tenant (after a takeover: those of the calls that it took are included).
    pub async fn slots_of_worker(&self, worker: WorkerId) -> Result<Vec<(TenantId, u32)>> {
        const OPERATION: &str = "read slots";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT tenant_id, granted FROM tenant_slots WHERE worker_id = $1 AND granted > 0",
                )
                .bind(worker.uuid()),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, |row| {
            let granted: i32 = row.try_get("granted")?;
            let tenant: Uuid = row.try_get("tenant_id")?;
            Ok((TenantId::from_uuid(tenant), u32::try_from(granted).unwrap_or(0)))
        })
    }
}
