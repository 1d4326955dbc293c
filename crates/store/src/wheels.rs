//! Wheels: rows here, bytes in the object store, as objects of artifacts.
//!
//! # Design notes
//!
//! *The same three steps* as for an artifact ([`crate::Store::save_artifact`]): the object's row, the bytes, the wheel's row; so there
//! is no wheel without bytes, and the sweep of objects removes what no wheel and no artifact has. A wheel is put by the tenant's own
//! request and not by a worker, so the database binds it to the tenant and not to a session's fence.
//!
//! *A name is put once.* Whoever installs by name gets what was put under it, until somebody deletes it. So the same bytes again change
//! nothing, and others are refused.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use domain::limits::WHEELS;
use domain::{TenantContext, TenantId, Wheel, WheelId, WheelName};
use futures_util::stream::BoxStream;
use serde_json::json;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::db::{read, read_found, signed, unknown_word, unsigned};
use crate::error::{constraint, translate};
use crate::json::sanitised_text;
use crate::objects::Sealed;
use crate::{AuditRow, Listed, Page, Result, Store, StoreError};

macro_rules! wheel_columns {
    () => {
        "id, tenant_id, file_name, size_bytes, sha256, created_at, last_used_at"
    };
}

const PUT: &str = "put wheel";
const READ: &str = "read wheel";
const DELETE: &str = "delete wheel";

/// What became of a wheel that was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutWheel {
    /// It is new.
    Made(Wheel),
    /// It was there with these very bytes.
    Same(Wheel),
    /// Another one has its name.
    Taken(Wheel),
}

impl PutWheel {
    fn there(wheel: Wheel, content: &Sealed) -> Self {
        if wheel.sha256 == HEXLOWER.encode(&content.sha256) { Self::Same(wheel) } else { Self::Taken(wheel) }
    }
}

impl Store {
    /// What putting this content under this name would come to, if there is a wheel of that name.
    pub async fn wheel_there(
        &self,
        context: &TenantContext,
        name: &WheelName,
        content: &Sealed,
    ) -> Result<Option<PutWheel>> {
        match self.get_wheel(context, name).await {
            Ok(wheel) => Ok(Some(PutWheel::there(wheel, content))),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// First step of putting: the object is known and safe from the sweep for a while. The second is [`Self::send_artifact`].
    pub async fn announce_wheel(&self, context: &TenantContext, content: &Sealed) -> Result<()> {
        let mut conn = self.db().tenant(PUT, context).await?;
        let announced = conn
            .try_one(
                sqlx::query(
                    "INSERT INTO artifact_objects (tenant_id, sha256, size_bytes) VALUES ($1, $2, $3)
                     ON CONFLICT (tenant_id, sha256) DO UPDATE SET touched_at = clock_timestamp() RETURNING 1",
                )
                .bind(context.tenant_id().uuid())
                .bind(&content.sha256[..])
                .bind(signed(content.size_bytes)),
            )
            .await?;
        match announced {
            Ok(_) => conn.end().await,
            Err(error) => {
                conn.undo().await?;
                Err(refusal(error))
            }
        }
    }

    /// Third step: the wheel. [`StoreError::Conflict`] when the tenant has as many as it may.
    pub async fn put_wheel(
        &self,
        context: &TenantContext,
        name: &WheelName,
        content: &Sealed,
    ) -> Result<PutWheel> {
        let id: WheelId = self.clock().new_id();
        let mut conn = self.db().tenant(PUT, context).await?;
        let statement = concat!(
            "INSERT INTO wheels (id, tenant_id, file_name, project, version, size_bytes, sha256)
             SELECT $2, $1, $3, $4, $5, $6, $7 WHERE (SELECT count(*) FROM wheels WHERE tenant_id = $1) < $8
             ON CONFLICT (tenant_id, file_name) DO NOTHING RETURNING ",
            wheel_columns!()
        );
        let made = conn
            .try_one(
                sqlx::query(statement)
                    .bind(context.tenant_id().uuid())
                    .bind(id.uuid())
                    .bind(name.as_str())
                    .bind(name.project())
                    .bind(name.version())
                    .bind(signed(content.size_bytes))
                    .bind(&content.sha256[..])
                    .bind(i64::from(WHEELS)),
            )
            .await?;
        match made {
            Ok(row) => {
                let made = wheel(&row).map_err(|error| translate(PUT, error))?;
                let details = json!({"sha256": made.sha256, "size_bytes": made.size_bytes});
                let audit = AuditRow::done("wheel.put", name.as_str()).details(details);
                conn.audit(Some(context.tenant_id()), context.principal(), &audit).await?;
                conn.end().await?;
                Ok(PutWheel::Made(made))
            }
            Err(error) => {
                conn.undo().await?;
                if !matches!(error, sqlx::Error::RowNotFound) {
                    return Err(refusal(error));
                }
                // Somebody else has put it meanwhile, or there is no room for another one.
                let message = "the tenant has as many wheels as it may, or this one was deleted just now";
                let there = self.wheel_there(context, name, content).await?;
                there.ok_or(StoreError::Conflict { operation: PUT, message })
            }
        }
    }

    /// A wheel by its name.
    pub async fn get_wheel(&self, context: &TenantContext, name: &WheelName) -> Result<Wheel> {
        let mut conn = self.db().tenant(READ, context).await?;
        let statement =
            concat!("SELECT ", wheel_columns!(), " FROM wheels WHERE tenant_id = $1 AND file_name = $2");
        let query = sqlx::query(statement).bind(context.tenant_id().uuid()).bind(name.as_str());
        let row = conn.optional(query).await?;
        conn.end().await?;
        read_found(READ, row, wheel)
    }

    /// Wheels, of one project or all, the newest first.
    pub async fn list_wheels(
        &self,
        context: &TenantContext,
        project: Option<&str>,
        page: Page,
    ) -> Result<Listed<Wheel>> {
        const OPERATION: &str = "list wheels";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let statement = concat!(
            "SELECT ",
            wheel_columns!(),
            " FROM wheels WHERE tenant_id = $1 AND ($2::text IS NULL OR project = $2) AND ($3::uuid IS NULL OR id < $3)
             ORDER BY id DESC LIMIT $4"
        );
        let rows = conn
            .all(
                sqlx::query(statement)
                    .bind(context.tenant_id().uuid())
                    .bind(project.map(sanitised_text))
                    .bind(page.after)
                    .bind(page.fetch()),
            )
            .await?;
        conn.end().await?;
        Ok(page.cut(read(OPERATION, &rows, wheel)?, |wheel| wheel.id.uuid()))
    }

    /// Names and sizes of all wheels, by name.
    pub async fn wheel_names(&self, context: &TenantContext) -> Result<Vec<(WheelName, u64)>> {
        const OPERATION: &str = "read names of wheels";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let rows = conn
            .all(
                sqlx::query("SELECT file_name, size_bytes FROM wheels WHERE tenant_id = $1 ORDER BY file_name LIMIT $2")
                    .bind(context.tenant_id().uuid())
                    .bind(i64::from(WHEELS)),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, |row| Ok((name(row)?, unsigned(row.try_get("size_bytes")?))))
    }

    /// Bytes of a wheel, piece by piece as they are asked for.
    pub async fn wheel_content(&self, wheel: &Wheel) -> Result<BoxStream<'static, Result<Bytes>>> {
        let sha256 = HEXLOWER
            .decode(wheel.sha256.as_bytes())
            .map_err(|error| StoreError::Internal { operation: READ, source: Box::new(error) })?;
        self.objects().get(READ, wheel.tenant_id, &sha256, 0..wheel.size_bytes).await
    }

    /// A session has got these wheels.
    pub async fn wheels_used(&self, context: &TenantContext, wheels: &[WheelId]) -> Result<()> {
        const OPERATION: &str = "note use of wheels";
        let ids: Vec<_> = wheels.iter().map(|id| id.uuid()).collect();
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let used =
            "UPDATE wheels SET last_used_at = clock_timestamp() WHERE tenant_id = $1 AND id = ANY ($2)";
        conn.execute(sqlx::query(used).bind(context.tenant_id().uuid()).bind(ids)).await?;
        conn.end().await
    }

    /// Deletes a wheel. No session gets it from here on; what has been installed stays. Its bytes go with a later sweep.
    pub async fn delete_wheel(&self, context: &TenantContext, name: &WheelName) -> Result<()> {
        let mut conn = self.db().tenant(DELETE, context).await?;
        let statement = "DELETE FROM wheels WHERE tenant_id = $1 AND file_name = $2";
        let query = sqlx::query(statement).bind(context.tenant_id().uuid()).bind(name.as_str());
        if conn.execute(query).await? == 0 {
            conn.undo().await?;
            return Err(StoreError::NotFound { operation: DELETE });
        }
        let row = AuditRow::done("wheel.delete", name.as_str());
        conn.audit(Some(context.tenant_id()), context.principal(), &row).await?;
        conn.end().await
    }
}

fn refusal(error: sqlx::Error) -> StoreError {
    match constraint(&error) {
        Some("tenant_is_not_erased") => {
            StoreError::Conflict { operation: PUT, message: "the tenant is being erased, or was" }
        }
        _ => translate(PUT, error),
    }
}

fn name(row: &PgRow) -> Result<WheelName, sqlx::Error> {
    let name: String = row.try_get("file_name")?;
    name.parse().map_err(|_| unknown_word("wheels.file_name"))
}

fn wheel(row: &PgRow) -> Result<Wheel, sqlx::Error> {
    Ok(Wheel {
        id: WheelId::from_uuid(row.try_get("id")?),
        tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
        name: name(row)?,
        size_bytes: unsigned(row.try_get("size_bytes")?),
        sha256: HEXLOWER.encode(&row.try_get::<Vec<u8>, _>("sha256")?),
        created_at: row.try_get("created_at")?,
        last_used_at: row.try_get("last_used_at")?,
    })
}
