//! Usage, as tenants and operators read it. What is read here was counted in [`meter`] and closed in [`close`]; no call is looked at.

mod close;
mod meter;

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use domain::limits::LIFETIME_S;
use domain::usage::{CallFigures, Period, SessionFigures};
use domain::{OperatorContext, SessionId, TenantContext, TenantId};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::clock::uuid_floor;
use crate::db::{Conn, read, read_found, unsigned};
use crate::error::translate;
use crate::{Listed, Page, Result, Store};

pub(crate) use close::close_tenant;
pub use meter::Metered;

/// The sums of figures, as columns of the table named `u`.
macro_rules! figure_sums {
    () => {
        "u.duration_class, sum(u.calls)::bigint AS calls, sum(u.succeeded)::bigint AS succeeded,
         sum(u.tool_errors)::bigint AS tool_errors, sum(u.failed)::bigint AS failed, sum(u.timed_out)::bigint AS timed_out,
         sum(u.cancelled)::bigint AS cancelled, sum(u.denied)::bigint AS denied, sum(u.lost)::bigint AS lost,
         sum(u.waited)::bigint AS waited, sum(u.cpu_ms)::bigint AS cpu_ms, sum(u.duration_ms)::bigint AS duration_ms,
         sum(u.queue_ms)::bigint AS queue_ms, sum(u.bytes_in)::bigint AS bytes_in, sum(u.bytes_out)::bigint AS bytes_out"
    };
}

/// Seconds and GB-seconds of sessions within [$1, $2), with further conditions on a session `s`.
macro_rules! session_use {
    ($columns:literal, $and:literal) => {
        concat!(
            "SELECT ",
            $columns,
            "coalesce(s.size, 'custom') AS size, sum(s.seconds)::double precision AS seconds,
                 sum(s.seconds * s.memory_mb / 1024.0)::double precision AS gb_seconds
             FROM (SELECT s.id, s.tenant_id, s.size, s.memory_mb, extract(epoch FROM
                       least(coalesce(s.ended_at, $2), $2) - greatest(s.started_at, $1)) AS seconds
                   FROM (SELECT * FROM sessions s WHERE s.status <> 'ended' ",
            $and,
            " UNION ALL SELECT * FROM sessions s WHERE s.ended_at > $1 ",
            $and,
            ") s
                   WHERE s.started_at < $2) s
             WHERE s.seconds > 0 GROUP BY ",
            $columns,
            "coalesce(s.size, 'custom')"
        )
    };
}
pub(crate) use session_use;

/// What figures are summed up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageGroup {
    /// By tool.
    Tool,
    /// By day (UTC), as `2026-03-01`.
    Day,
}

/// What a tenant used in a period.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// Figures by what was asked for.
    pub groups: BTreeMap<String, CallFigures>,
    /// What its sessions took.
    pub sessions: SessionFigures,
}

/// What one session used.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionUsage {
    /// The session.
    pub session_id: SessionId,
    /// Figures by tool.
    pub tools: BTreeMap<String, CallFigures>,
    /// What the session itself took so far.
    pub session: SessionFigures,
}

/// One closed hour of a tenant: what is billed.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageHour {
    /// The place in the order of hours.
    pub id: Uuid,
    /// Whose.
    pub tenant_id: TenantId,
    /// Where the hour begins.
    pub hour: DateTime<Utc>,
    /// Calls that ended in it.
    pub calls: u64,
    /// Of these, failed, timed out or lost ones.
    pub errors: u64,
    /// Their CPU time.
    pub cpu_ms: u64,
    /// Their bytes of arguments and input.
    pub bytes_in: u64,
    /// Their bytes of output.
    pub bytes_out: u64,
    /// What sessions took.
    pub sessions: SessionFigures,
}

/// A kind of refusal and how often it was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals {
    /// What was tried.
    pub action: String,
    /// Why not, when the reason is a code.
    pub reason: String,
    /// How often.
    pub refusals: u64,
}

/// Which closed hours to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct HourFilter {
    /// Of this tenant; of all when left out.
    pub tenant_id: Option<TenantId>,
    /// Hours that begin at this time or later.
    pub from: Option<DateTime<Utc>>,
    /// Hours that begin before this time.
    pub to: Option<DateTime<Utc>>,
}

const READ: &str = "read usage";

impl Store {
    /// What the tenant used in a period, by tool or day. Calls are in it within seconds of their end.
    pub async fn usage(&self, context: &TenantContext, period: Period, group: UsageGroup) -> Result<Usage> {
        let mut conn = self.db().tenant(READ, context).await?;
        let statement = match group {
            UsageGroup::Tool => sqlx::query(concat!(
                "SELECT u.tool AS key, ",
                figure_sums!(),
                " FROM usage_calls u WHERE u.tenant_id = $1 AND u.hour >= $2 AND u.hour < $3 GROUP BY u.tool, u.duration_class"
            )),
            UsageGroup::Day => sqlx::query(concat!(
                "SELECT to_char(u.hour AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS key, ",
                figure_sums!(),
                " FROM usage_calls u WHERE u.tenant_id = $1 AND u.hour >= $2 AND u.hour < $3 GROUP BY 1, u.duration_class"
            )),
        };
        let statement = statement.bind(context.tenant_id().uuid()).bind(period.from).bind(period.to);
        let groups = grouped(&conn.all(statement).await?)?;
        let mut sessions = closed_sessions(&mut conn, context.tenant_id(), period).await?;
        sessions.add(&open_sessions(&mut conn, context.tenant_id(), period).await?);
        conn.end().await?;
        Ok(Usage { groups, sessions })
    }

    /// What sessions of the tenant used in a period, newest session first. Kept as long as calls are.
    pub async fn usage_by_session(
        &self,
        context: &TenantContext,
        period: Period,
        page: Page,
    ) -> Result<Listed<(SessionId, CallFigures)>> {
        let oldest =
            uuid_floor(period.from - TimeDelta::seconds(i64::from(LIFETIME_S)) - TimeDelta::hours(1));
        let newest = uuid_floor(period.to);
        let mut conn = self.db().tenant(READ, context).await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "WITH of_page AS MATERIALIZED (
                         SELECT DISTINCT u.session_id FROM usage_session_calls u
                         WHERE u.tenant_id = $1 AND u.session_id >= $4 AND u.session_id < $5 AND u.hour >= $2 AND u.hour < $3
                         ORDER BY u.session_id DESC LIMIT $6
                     )
                     SELECT p.session_id, f.* FROM of_page p CROSS JOIN LATERAL (SELECT ",
                    figure_sums!(),
                    " FROM usage_session_calls u
                         WHERE u.tenant_id = $1 AND u.session_id = p.session_id AND u.hour >= $2 AND u.hour < $3
                         GROUP BY u.duration_class) f
                     ORDER BY p.session_id DESC"
                ))
                .bind(context.tenant_id().uuid())
                .bind(period.from)
                .bind(period.to)
                .bind(oldest)
                .bind(page.after.map_or(newest, |after| after.min(newest)))
                .bind(page.fetch()),
            )
            .await?;
        conn.end().await?;
        let mut sessions: Vec<(SessionId, CallFigures)> = Vec::new();
        for (id, part) in read(READ, &rows, |row| Ok((row.try_get::<Uuid, _>("session_id")?, figures(row)?)))?
        {
            let id = SessionId::from_uuid(id);
            match sessions.last_mut() {
                Some((last, sums)) if *last == id => sums.add(&part),
                _ => sessions.push((id, part)),
            }
        }
        Ok(page.cut(sessions, |(id, _)| id.uuid()))
    }

    /// What one session used so far.
    pub async fn usage_of_session(&self, context: &TenantContext, id: SessionId) -> Result<SessionUsage> {
        let mut conn = self.db().tenant(READ, context).await?;
        let row = conn
            .optional(
                sqlx::query(
                    "SELECT coalesce(s.size, 'custom') AS size, coalesce(seconds, 0) AS seconds,
                         coalesce(seconds * s.memory_mb / 1024.0, 0)::double precision AS gb_seconds
                     FROM sessions s CROSS JOIN LATERAL (SELECT extract(epoch FROM
                         coalesce(s.ended_at, clock_timestamp()) - s.started_at)::double precision AS seconds) t
                     WHERE s.tenant_id = $1 AND s.id = $2",
                )
                .bind(context.tenant_id().uuid())
                .bind(id.uuid()),
            )
            .await?;
        let rows = conn
            .all(
                sqlx::query(concat!(
                    "SELECT u.tool AS key, ",
                    figure_sums!(),
                    " FROM usage_session_calls u WHERE u.tenant_id = $1 AND u.session_id = $2 GROUP BY u.tool, u.duration_class"
                ))
                .bind(context.tenant_id().uuid())
                .bind(id.uuid()),
            )
            .await?;
        conn.end().await?;
        let session = session_figures(&[row.ok_or(crate::StoreError::NotFound { operation: READ })?])?;
        Ok(SessionUsage { session_id: id, tools: grouped(&rows)?, session })
    }

    /// Closed hours of the tenant, oldest first. A closed hour never changes.
    pub async fn usage_hours(
        &self,
        context: &TenantContext,
        filter: HourFilter,
        page: Page,
    ) -> Result<Listed<UsageHour>> {
        let filter = HourFilter { tenant_id: Some(context.tenant_id()), ..filter };
        let mut conn = self.db().tenant(READ, context).await?;
        let hours = hours(&mut conn, filter, page).await?;
        conn.end().await?;
        Ok(hours)
    }

    /// Closed hours of all tenants, or of one, oldest first.
    pub async fn usage_hours_of_all(
        &self,
        _operator: &OperatorContext,
        filter: HourFilter,
        page: Page,
    ) -> Result<Listed<UsageHour>> {
        let mut conn = self.db().system(READ).await?;
        let hours = hours(&mut conn, filter, page).await?;
        conn.end().await?;
        Ok(hours)
    }

    /// What the tenant was refused in a period.
    pub async fn refusals(&self, context: &TenantContext, period: Period) -> Result<Vec<Refusals>> {
        let mut conn = self.db().tenant(READ, context).await?;
        let rows = conn
            .all(
                sqlx::query(
                    "SELECT action, reason, sum(refusals)::bigint AS refusals FROM usage_refusals
                     WHERE tenant_id = $1 AND hour >= $2 AND hour < $3 GROUP BY action, reason ORDER BY 3 DESC, 1, 2",
                )
                .bind(context.tenant_id().uuid())
                .bind(period.from)
                .bind(period.to),
            )
            .await?;
        conn.end().await?;
        read(READ, &rows, |row| {
            Ok(Refusals {
                action: row.try_get("action")?,
                reason: row.try_get("reason")?,
                refusals: unsigned(row.try_get("refusals")?),
            })
        })
    }

    /// CPU time of the tenant's calls that ended since a time, and of its shells since then, in milliseconds.
    pub async fn cpu_ms_since(&self, context: &TenantContext, since: DateTime<Utc>) -> Result<u64> {
        let mut conn = self.db().tenant(READ, context).await?;
        let row = conn
            .one(
                sqlx::query(
                    "SELECT coalesce(sum(cpu_ms), 0)::bigint AS cpu_ms FROM usage_calls WHERE tenant_id = $1 AND hour >= $2",
                )
                .bind(context.tenant_id().uuid())
                .bind(since),
            )
            .await?;
        conn.end().await?;
        row.try_get("cpu_ms").map(unsigned).map_err(|error| translate(READ, error))
    }

    /// Forgets what sessions used whose calls are forgotten. Returns how many rows.
    pub async fn prune_session_usage(&self, calls_days: u32) -> Result<u64> {
        let before = self.clock().now()
            - TimeDelta::days(i64::from(calls_days))
            - TimeDelta::seconds(i64::from(LIFETIME_S));
        let mut conn = self.db().system("prune usage of sessions").await?;
        let pruned = conn
            .execute(
                sqlx::query("DELETE FROM usage_session_calls WHERE session_id < $1").bind(uuid_floor(before)),
            )
            .await?;
        conn.end().await?;
        Ok(pruned)
    }
}

async fn closed_sessions(conn: &mut Conn, tenant: TenantId, period: Period) -> Result<SessionFigures> {
    let rows = conn
        .all(
            sqlx::query(
                "SELECT e.key AS size, sum(e.value::double precision)::double precision AS seconds, 0::double precision AS gb_seconds
                 FROM usage_hours h CROSS JOIN LATERAL jsonb_each_text(h.session_seconds) e
                 WHERE h.tenant_id = $1 AND h.hour >= $2 AND h.hour < $3 GROUP BY e.key
                 UNION ALL
                 SELECT NULL, 0, coalesce(sum(h.gb_seconds), 0) FROM usage_hours h
                 WHERE h.tenant_id = $1 AND h.hour >= $2 AND h.hour < $3",
            )
            .bind(tenant.uuid())
            .bind(period.from)
            .bind(period.to),
        )
        .await?;
    session_figures(&rows)
}

/// What sessions took since the last hour that is closed.
async fn open_sessions(conn: &mut Conn, tenant: TenantId, period: Period) -> Result<SessionFigures> {
    let row = conn
        .one(
            sqlx::query(
                "SELECT greatest($1, m.closed_until) AS since, least($2, clock_timestamp()) AS until FROM usage_meter m",
            )
            .bind(period.from)
            .bind(period.to),
        )
        .await?;
    let bounds = |row: &PgRow| {
        Ok((row.try_get::<DateTime<Utc>, _>("since")?, row.try_get::<DateTime<Utc>, _>("until")?))
    };
    let (since, until) = read_found(READ, Some(row), bounds)?;
    if since >= until {
        return Ok(SessionFigures::default());
    }
    let statement = sqlx::query(session_use!("", "AND s.tenant_id = $3"));
    let rows = conn.all(statement.bind(since).bind(until).bind(tenant.uuid())).await?;
    session_figures(&rows)
}

async fn hours(conn: &mut Conn, filter: HourFilter, page: Page) -> Result<Listed<UsageHour>> {
    let columns = "SELECT id, tenant_id, hour, calls, errors, cpu_ms, bytes_in, bytes_out, session_seconds, gb_seconds FROM usage_hours";
    let bounds = "id > $1 AND id < $2";
    // Two texts, so that each has the plan of its own index.
    let text = match filter.tenant_id {
        Some(_) => format!("{columns} WHERE {bounds} AND tenant_id = $4 ORDER BY id LIMIT $3"),
        None => format!("{columns} WHERE {bounds} AND $4::uuid IS NULL ORDER BY id LIMIT $3"),
    };
    let floor = filter.from.map_or(Uuid::nil(), uuid_floor);
    let rows = conn
        .all(
            sqlx::query(sqlx::AssertSqlSafe(text))
                .bind(page.after.map_or(floor, |after| after.max(floor)))
                .bind(filter.to.map_or(Uuid::max(), uuid_floor))
                .bind(page.fetch())
                .bind(filter.tenant_id.map(TenantId::uuid)),
        )
        .await?;
    Ok(page.cut(read(READ, &rows, hour)?, |hour| hour.id))
}

fn hour(row: &PgRow) -> Result<UsageHour, sqlx::Error> {
    let number = |column| row.try_get::<i64, _>(column).map(unsigned);
    Ok(UsageHour {
        id: row.try_get("id")?,
        tenant_id: TenantId::from_uuid(row.try_get("tenant_id")?),
        hour: row.try_get("hour")?,
        calls: number("calls")?,
        errors: number("errors")?,
        cpu_ms: number("cpu_ms")?,
        bytes_in: number("bytes_in")?,
        bytes_out: number("bytes_out")?,
        sessions: SessionFigures {
            seconds: row.try_get::<Json<_>, _>("session_seconds")?.0,
            gb_seconds: row.try_get("gb_seconds")?,
        },
    })
}

fn grouped(rows: &[PgRow]) -> Result<BTreeMap<String, CallFigures>> {
    let mut groups: BTreeMap<String, CallFigures> = BTreeMap::new();
    for (key, part) in read(READ, rows, |row| Ok((row.try_get::<String, _>("key")?, figures(row)?)))? {
        groups.entry(key).or_default().add(&part);
    }
    Ok(groups)
}

fn figures(row: &PgRow) -> Result<CallFigures, sqlx::Error> {
    let number = |column| row.try_get::<i64, _>(column).map(unsigned);
    let calls = number("calls")?;
    Ok(CallFigures {
        calls,
        succeeded: number("succeeded")?,
        tool_errors: number("tool_errors")?,
        failed: number("failed")?,
        timed_out: number("timed_out")?,
        cancelled: number("cancelled")?,
        denied: number("denied")?,
        lost: number("lost")?,
        waited: number("waited")?,
        cpu_ms: number("cpu_ms")?,
        duration_ms: number("duration_ms")?,
        queue_ms: number("queue_ms")?,
        bytes_in: number("bytes_in")?,
        bytes_out: number("bytes_out")?,
        durations: BTreeMap::from([(row.try_get("duration_class")?, calls)]),
    })
}

/// Rows of size, seconds and GB-seconds; one without a size has GB-seconds alone.
fn session_figures(rows: &[PgRow]) -> Result<SessionFigures> {
    let mut sums = SessionFigures::default();
    let each = |row: &PgRow| {
        Ok((
            row.try_get::<Option<String>, _>("size")?,
            row.try_get::<f64, _>("seconds")?,
            row.try_get::<f64, _>("gb_seconds")?,
        ))
    };
    for (size, seconds, gb_seconds) in read(READ, rows, each)? {
        sums.gb_seconds += gb_seconds;
        if let Some(size) = size {
            *sums.seconds.entry(size).or_default() += seconds;
        }
    }
    Ok(sums)
}
