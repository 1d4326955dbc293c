//! Claims: queued calls become `starting` under a worker's lease, fairly between tenants.
//!
//! # Design notes
//!
//! * A claim goes by the worker's own sessions, as only their owner may run their calls: it never looks at the queue
//!   of another worker, and the limit of a session is a `LIMIT`.
//! * Claimed rows stay in the index of queued calls until they are vacuumed, which an open snapshot forbids: claiming from the head cost
//!   14 times as much then. So each session's scan begins at a cursor: the oldest call that was queued at the claim before, but never
//!   later than [`SLACK`] ago, because ids are made before their rows are committed. A call that stays behind
//!   nevertheless is found when the cursor starts over.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::limits::LIFETIME_S;
use domain::{Call, SessionId, TenantId, WorkerId};
use sqlx::Row;
use uuid::Uuid;

use crate::calls::{call, call_columns};
use crate::clock::{SLACK, uuid_floor};
use crate::db::read;
use crate::sessions::narrow;
use crate::{Result, Store};

/// What a worker can take.
#[derive(Debug, Clone, Default)]
pub struct ClaimRequest {
    /// Most calls in all.
    pub max: u32,
    /// Tenants in fair order. All of a tenant's slots are filled before the next one's turn, so give a tenant as many
    /// as fairness allows for one turn.
    pub turns: Vec<TenantTurn>,
    /// Calls that run at the moment in the worker's sessions; sessions that are not named have none.
    pub running: Vec<(SessionId, u32)>,
}

/// One tenant's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantTurn {
    /// The tenant.
    pub tenant_id: TenantId,
    /// Slots that the worker holds for it and that are free.
    pub slots: u32,
    /// How many calls of one session may run at the same time.
    pub session_running_limit: u32,
}

/// Where the next claim begins to look, for each session. One for each worker, kept in memory, lost without harm.
#[derive(Debug, Default)]
pub struct ClaimCursor {
    from: HashMap<SessionId, Uuid>,
    started: Option<Instant>,
}

/// How often cursors start over.
const START_OVER: Duration = Duration::from_secs(60);

impl ClaimCursor {
    fn columns(&mut self) -> (Vec<Uuid>, Vec<Uuid>) {
        let now = Instant::now();
        if self.started.is_none_or(|started| now.duration_since(started) >= START_OVER) {
            self.started = Some(now);
            self.from.clear();
        }
        self.from.iter().map(|(session, from)| (session.uuid(), *from)).unzip()
    }
}

/// A tenant with calls that this worker could claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantWaiting {
    /// The tenant.
    pub tenant_id: TenantId,
    /// Sessions with at least one queued call.
    pub sessions: u32,
}

impl Store {
    /// Claims queued calls of sessions that this worker owns and that run: `starting`, attempt risen. Oldest first within a tenant.
    /// Leaves calls whose `after_call_id` has not ended, calls to be cancelled, and sessions at their limit.
    pub async fn claim_calls(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
        cursor: &mut ClaimCursor,
    ) -> Result<Vec<Call>> {
        const OPERATION: &str = "claim calls";
        let (known, from) = cursor.columns();
        let (running_in, running) = request
            .running
            .iter()
            .map(|(id, count)| (id.uuid(), narrow(*count)))
            .unzip::<_, _, Vec<_>, Vec<_>>();
        let turn = |field: fn(&TenantTurn) -> i32| request.turns.iter().map(field).collect::<Vec<_>>();
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "WITH turn AS (
                         SELECT * FROM unnest($2::uuid[], $3::integer[], $4::integer[])
                             WITH ORDINALITY AS t(tenant_id, slots, session_limit, rank)
                     ), owned AS MATERIALIZED (
                         SELECT s.id, s.tenant_id, t.rank, t.slots, t.session_limit - coalesce(r.running, 0) AS free,
                             coalesce(k.from_id, toolhost_uuid_floor(s.created_at - interval '1 minute')) AS from_id
                         FROM turn t
                         JOIN sessions s ON s.tenant_id = t.tenant_id AND s.worker_id = $1 AND s.status = 'running'
                             AND NOT s.end_requested AND s.reset_requested = s.reset_done
                         LEFT JOIN unnest($5::uuid[], $6::integer[]) AS r(session_id, running) ON r.session_id = s.id
                         LEFT JOIN unnest($7::uuid[], $8::uuid[]) AS k(session_id, from_id) ON k.session_id = s.id
                         WHERE EXISTS (SELECT FROM workers w WHERE w.id = $1 AND w.lease_expires_at > clock_timestamp()
                             AND NOT w.draining)
                     ), head AS MATERIALIZED (
                         SELECT o.id, (SELECT c.id FROM calls c WHERE c.tenant_id = o.tenant_id AND c.session_id = o.id
                             AND c.status = 'queued' AND c.id >= o.from_id AND c.id >= $11 AND c.id < $10 ORDER BY c.id LIMIT 1) AS oldest
                         FROM owned o
                     ), candidate AS (
                         SELECT c.id, o.rank, o.slots, row_number() OVER (PARTITION BY o.tenant_id ORDER BY c.id) AS place
                         FROM owned o JOIN head h ON h.id = o.id AND h.oldest IS NOT NULL
                         CROSS JOIN LATERAL (
                             SELECT q.id FROM calls q WHERE q.tenant_id = o.tenant_id AND q.session_id = o.id
                                 AND q.status = 'queued' AND q.id >= h.oldest AND q.id >= $11 AND q.id < $10 AND NOT q.cancel_requested
                                 AND (q.after_call_id IS NULL OR NOT EXISTS (SELECT FROM calls a
                                     WHERE a.id = q.after_call_id AND a.ended_at IS NULL))
                             ORDER BY q.id LIMIT greatest(o.free, 0) FOR NO KEY UPDATE SKIP LOCKED
                         ) c
                     ), picked AS MATERIALIZED (
                         SELECT id FROM candidate WHERE place <= slots ORDER BY rank, place LIMIT $9
                     ), claimed AS (
                         UPDATE calls c SET status = 'starting', attempt = c.attempt + 1, worker_id = $1
                         FROM picked WHERE c.id = picked.id AND c.id >= $11 AND c.id < $10 AND c.status = 'queued' RETURNING c.*
                     )
                     SELECT h.id AS head_session, h.oldest AS head_oldest, ",
                    call_columns!(),
                    " FROM head h FULL JOIN claimed c ON false ORDER BY c.id"
                ))
                .bind(worker.uuid())
                .bind(request.turns.iter().map(|turn| turn.tenant_id.uuid()).collect::<Vec<_>>())
                .bind(turn(|turn| narrow(turn.slots)))
                .bind(turn(|turn| narrow(turn.session_running_limit)))
                .bind(running_in)
                .bind(running)
                .bind(known)
                .bind(from)
                .bind(i64::from(request.max))
                .bind(uuid_floor(self.clock().now() + SLACK))
                .bind(self.oldest_claimable()),
            )
            .await?;
        conn.end().await?;
        let latest = uuid_floor(self.clock().now() - SLACK);
        let mut claimed = Vec::new();
        for found in read(OPERATION, &rows, |row| {
            Ok(match row.try_get::<Option<Uuid>, _>("head_session")? {
                Some(session) => {
                    let oldest: Option<Uuid> = row.try_get("head_oldest")?;
                    Found::Head(
                        SessionId::from_uuid(session),
                        oldest.map_or(latest, |oldest| oldest.min(latest)),
                    )
                }
                None => Found::Claimed(Box::new(call(row)?)),
            })
        })? {
            match found {
                Found::Head(session, from) => drop(cursor.from.insert(session, from)),
                Found::Claimed(call) => claimed.push(*call),
            }
        }
        self.db().metrics.claims.inc_by(claimed.len() as u64);
        Ok(claimed)
    }

    /// Tenants with queued calls in this worker's running sessions.
    pub async fn tenants_waiting(&self, worker: WorkerId) -> Result<Vec<TenantWaiting>> {
        const OPERATION: &str = "read waiting tenants";
        let mut conn = self.db().system(OPERATION).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT s.tenant_id, count(*) AS sessions FROM sessions s
                     WHERE s.worker_id = $1 AND s.status = 'running' AND NOT s.end_requested
                       AND s.reset_requested = s.reset_done
                       AND EXISTS (SELECT FROM calls c WHERE c.tenant_id = s.tenant_id AND c.session_id = s.id
                           AND c.status = 'queued' AND c.id >= toolhost_uuid_floor(s.created_at - interval '1 minute')
                           AND c.id >= $3 AND c.id < $2)
                     GROUP BY s.tenant_id ORDER BY s.tenant_id",
                )
                .bind(worker.uuid())
                .bind(uuid_floor(self.clock().now() + SLACK))
                .bind(self.oldest_claimable()),
            )
            .await?;
        conn.end().await?;
        read(OPERATION, &rows, |row| {
            Ok(TenantWaiting {
                tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
                sessions: u32::try_from(row.try_get::<i64, _>("sessions")?).unwrap_or(u32::MAX),
            })
        })
    }
}

impl Store {
    /// No call of a session that still serves is older than a session may become; partitions of older days are left out.
    fn oldest_claimable(&self) -> Uuid {
        uuid_floor(self.clock().now() - Duration::from_secs(u64::from(LIFETIME_S)) - START_OVER)
    }
}

/// A row of the claim: where a session's queue began, or a call that was claimed.
enum Found {
    Head(SessionId, Uuid),
    Claimed(Box<Call>),
}
