//! Where a session is: which worker has it, and at which address that worker's internal listener is.

use domain::exchange::ExchangeError;
use domain::{Code, SessionEnd, SessionId, SessionStatus, TenantContext, WorkerId};
use sqlx::Row;

use crate::db::read_found;
use crate::sessions::{session, session_columns};
use crate::{Result, Store};

/// Where a session is at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionPlace {
    /// In which state it is.
    pub status: SessionStatus,
    /// How it ended.
    pub end: Option<SessionEnd>,
    /// The worker that has it, while that worker's lease lives.
    pub worker: Option<WorkerPlace>,
}

/// A living worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPlace {
    /// Which.
    pub worker_id: WorkerId,
    /// Its internal listener, `host:port`.
    pub internal_address: Option<String>,
}

impl SessionPlace {
    /// The worker to ask.
    ///
    /// # Errors
    /// [`Code::SessionEnded`], or [`Code::WorkerUnavailable`] while nobody has it.
    pub fn worker(&self) -> std::result::Result<&WorkerPlace, ExchangeError> {
        match (self.status, &self.worker) {
            (SessionStatus::Ended, _) => {
                let message = self.end.as_ref().map_or("The session has ended.", |end| end.message.as_str());
                Err(ExchangeError::new(Code::SessionEnded, message))
            }
            (SessionStatus::Starting | SessionStatus::Running, Some(worker)) => Ok(worker),
            (SessionStatus::Starting | SessionStatus::Running, None) => Err(ExchangeError::new(
                Code::WorkerUnavailable,
                "No worker has the session at the moment; it is starting or being taken over.",
            )),
        }
    }
}

impl Store {
    /// Where a session of the tenant is.
    pub async fn session_place(&self, context: &TenantContext, id: SessionId) -> Result<SessionPlace> {
        const OPERATION: &str = "find session's worker";
        let mut conn = self.db().tenant(OPERATION, context).await?;
        let row = conn
            .optional(
                sqlx::query(concat!(
                    "SELECT ",
                    session_columns!(),
                    ", w.id AS living_worker, w.internal_address FROM sessions s
                     LEFT JOIN workers w ON w.id = s.worker_id AND w.lease_expires_at > clock_timestamp()
                     WHERE s.id = $1 AND s.tenant_id = $2"
                ))
                .bind(id.uuid())
                .bind(context.tenant_id().uuid()),
            )
            .await?;
        conn.end().await?;
        read_found(OPERATION, row, |row| {
            let session = session(row)?;
            let worker_id: Option<uuid::Uuid> = row.try_get("living_worker")?;
            let internal_address = row.try_get("internal_address")?;
            let worker =
                worker_id.map(|id| WorkerPlace { worker_id: WorkerId::from_uuid(id), internal_address });
            Ok(SessionPlace { status: session.status, end: session.ended, worker })
        })
    }

    /// Publishes where a worker's internal listener is, or that it has none.
    pub async fn publish_worker_address(&self, worker: WorkerId, address: Option<&str>) -> Result<()> {
        let mut conn = self.db().system("publish worker's address").await?;
        conn.execute(
            sqlx::query("UPDATE workers SET internal_address = $2 WHERE id = $1")
                .bind(worker.uuid())
                .bind(address),
        )
        .await?;
        conn.end().await
    }
}
