//! Closing an hour: one row for each tenant that used something, written once and billed.
//!
//! The hour is over for a minute and everything recorded in it was counted; so what sessions took can be told from their rows, in the
//! transaction that moves the mark. Closing it twice is not possible, and a meter that is killed has either closed it or not.

use chrono::{DateTime, TimeDelta, Utc};

use super::session_use;
use crate::Result;
use crate::db::Conn;

/// Closes the hour that begins here. Under the meter's lock.
pub(super) async fn close_hour(conn: &mut Conn, hour: DateTime<Utc>) -> Result<()> {
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
             FROM tenant t LEFT JOIN of_sessions s USING (tenant_id) LEFT JOIN of_calls c USING (tenant_id)"
        ))
        .bind(hour)
        .bind(end),
    )
    .await?;
    conn.execute(sqlx::query("UPDATE usage_meter SET closed_until = $1").bind(end)).await?;
    Ok(())
}
