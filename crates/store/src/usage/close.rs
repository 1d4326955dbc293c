//! Closing an hour: one row for each tenant that used something, written once and billed.
//!
//! The hour is over for a minute and everything recorded in it was counted; so what sessions took can be told from their rows, in the
//! transaction that moves the mark. Closing it twice is not possible, and a meter that is killed has either closed it or not.

use chrono::{DateTime, TimeDelta, Utc};
use domain::TenantId;
use sqlx::Row;

use super::meter::{METER, hold};
use super::session_use;
use crate::Result;
use crate::db::{Conn, read_found};

/// Closes the hour that begins here. Under the meter's lock. A tenant that is being erased has closed it for itself already.
pub(super) async fn close_hour(conn: &mut Conn, hour: DateTime<Utc>) -> Result<()> {
    write_hour(conn, hour, None).await?;
    let end = hour + TimeDelta::hours(1);
    conn.execute(sqlx::query("UPDATE usage_meter SET closed_until = $1").bind(end)).await?;
    Ok(())
}

/// Closes the open hours of a tenant of which nothing runs any more, the present one too. False while not all of it is counted, or the
/// meter is just at work.
pub(crate) async fn close_tenant(conn: &mut Conn, tenant: TenantId) -> Result<bool> {
    let Some(closed_until) = hold(conn).await? else { return Ok(false) };
    let row = conn
        .one(
            sqlx::query(
                "SELECT clock_timestamp() AS now, coalesce((SELECT seq FROM audit_heads WHERE chain = $1), 0)
                     <= coalesce((SELECT seq FROM usage_places WHERE chain = $1), 0)
                     AND NOT EXISTS (SELECT FROM shells WHERE tenant_id = $1 AND cpu_ms > cpu_metered_ms) AS counted",
            )
            .bind(tenant.uuid()),
        )
        .await?;
    let (now, counted) = read_found(METER, Some(row), |row| {
        Ok((row.try_get::<DateTime<Utc>, _>("now")?, row.try_get::<bool, _>("counted")?))
    })?;
    let mut hour = closed_until;
    while counted && hour <= now {
        write_hour(conn, hour, Some(tenant)).await?;
        hour += TimeDelta::hours(1);
    }
    Ok(counted)
}

/// One row for each tenant that used something in the hour, or for this one.
async fn write_hour(conn: &mut Conn, hour: DateTime<Utc>, only: Option<TenantId>) -> Result<()> {
    let end = hour + TimeDelta::hours(1);
    conn.execute(
        sqlx::query(concat!(
            "WITH of_size AS (",
            session_use!("s.tenant_id, ", ""),
            "), of_sessions AS (
                 SELECT tenant_id, jsonb_object_agg(size, round(seconds::numeric, 3)) AS seconds, sum(gb_seconds) AS gb_seconds
                 FROM of_size GROUP BY tenant_id
             ), of_calls AS (
                 SELECT tenant_id, sum(calls)::bigint AS calls, sum(failed + timed_out + lost)::bigint AS errors,
                     sum(cpu_ms)::bigint AS cpu_ms, sum(bytes_in)::bigint AS bytes_in, sum(bytes_out)::bigint AS bytes_out
                 FROM usage_calls WHERE hour = $1 GROUP BY tenant_id
             ), tenant AS (
                 SELECT tenant_id FROM of_sessions UNION SELECT tenant_id FROM of_calls
             )
             INSERT INTO usage_hours (id, tenant_id, hour, calls, errors, cpu_ms, bytes_in, bytes_out, session_seconds, gb_seconds)
             SELECT (left(toolhost_uuid_floor($1)::text, 13) || substr(t.tenant_id::text, 14))::uuid, t.tenant_id, $1,
                 coalesce(c.calls, 0), coalesce(c.errors, 0), coalesce(c.cpu_ms, 0), coalesce(c.bytes_in, 0),
                 coalesce(c.bytes_out, 0), coalesce(s.seconds, '{}'), coalesce(s.gb_seconds, 0)
             FROM tenant t LEFT JOIN of_sessions s USING (tenant_id) LEFT JOIN of_calls c USING (tenant_id)
             WHERE $3::uuid IS NULL OR t.tenant_id = $3 ON CONFLICT (tenant_id, hour) DO NOTHING"
        ))
        .bind(hour)
        .bind(end)
        .bind(only.map(TenantId::uuid)),
    )
    .await?;
    Ok(())
}
