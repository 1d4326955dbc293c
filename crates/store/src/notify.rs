//! The hints between processes: one task that sends NOTIFY, one that listens. Losing either loses only time.

use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use domain::{CallId, SessionId, ShellId};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection, Row};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Result;
use crate::bus::{Bus, Hint, Outgoing};
use crate::db::{Db, bounded};
use crate::error::translate;
use crate::reach::Role;

const CHANNEL: &str = "toolhost";
/// Name of listening connections in `pg_stat_activity`, by which processes see whether anybody else listens.
const LISTENER: &str = "toolhost-listen";
/// Hints in one NOTIFY: 23 bytes each, below Postgres' 8,000.
const HINTS_PER_NOTIFY: usize = 300;
/// How long hints gather after the first.
const GATHER: Duration = Duration::from_millis(1);
/// Silence after which the listening connection is asked whether it still lives.
const SILENCE: Duration = Duration::from_secs(10);
const RECONNECT: Duration = Duration::from_millis(250);

/// Sends hints until the token is cancelled.
pub(crate) async fn send(db: Db, bus: Bus, origin: Uuid, stop: CancellationToken) {
    let mut connection: Option<PgConnection> = None;
    loop {
        let hints = tokio::select! {
            hints = bus.outgoing() => hints,
            () = stop.cancelled() => break,
        };
        let payloads: Vec<String> =
            hints.chunks(HINTS_PER_NOTIFY).map(|hints| encode(origin, hints)).collect();
        if let Err(error) = notify(&db, &mut connection, &payloads).await {
            tracing::debug!(%error, "hints were not sent; readers poll");
            connection = None;
            tokio::time::sleep(RECONNECT).await;
            continue;
        }
        db.metrics.notifies.inc_by(payloads.len() as u64);
        db.metrics.hints.inc_by(hints.len() as u64);
        tokio::time::sleep(GATHER).await;
    }
    if let Some(connection) = connection {
        let _ = connection.close().await;
    }
}

async fn notify(db: &Db, connection: &mut Option<PgConnection>, payloads: &[String]) -> Result<()> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(session(db).await?),
    };
    let statement = sqlx::query("SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload")
        .bind(CHANNEL)
        .bind(payloads);
    bounded("notify", db.timeout(), open.execute(statement)).await?;
    Ok(())
}

/// A hint is not worth a flush to disk.
async fn session(db: &Db) -> Result<PgConnection> {
    let options = db.ways().session(Role::System).options([("synchronous_commit", "off")]);
    bounded("notify", db.timeout(), PgConnection::connect_with(&options)).await
}

/// Listens until the token is cancelled. After every gap everybody is woken.
pub(crate) async fn listen(db: Db, bus: Bus, origin: Uuid, stop: CancellationToken) {
    loop {
        let ended = tokio::select! {
            ended = listen_once(&db, &bus, origin) => ended,
            () = stop.cancelled() => return,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "the listening connection was lost");
        }
        // Who else listens is not known now.
        bus.set_peers(true);
        tokio::select! {
            () = tokio::time::sleep(RECONNECT) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn listen_once(db: &Db, bus: &Bus, origin: Uuid) -> Result<()> {
    let options = db.ways().session(Role::System).application_name(LISTENER);
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(db.timeout())
        .max_lifetime(None)
        .idle_timeout(None)
        .connect_lazy_with(options);
    let mut listener = bounded("listen", db.timeout(), PgListener::connect_with(&pool)).await?;
    listener.eager_reconnect(false);
    bounded("listen", db.timeout(), listener.listen(CHANNEL)).await?;
    bus.wake_everybody();
    // Others may have believed to be alone.
    let hello = sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(encode(origin, &[]));
    bounded("listen", db.timeout(), listener.execute(hello)).await?;
    count_peers(db, bus, &mut listener).await?;
    loop {
        match tokio::time::timeout(SILENCE, listener.try_recv()).await {
            Ok(Ok(Some(notification))) => receive(bus, origin, notification.payload()),
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(translate("listen", error)),
            Err(_) => count_peers(db, bus, &mut listener).await?,
        }
    }
}

/// Whether anybody else listens; also shows that the connection still lives.
async fn count_peers(db: &Db, bus: &Bus, listener: &mut PgListener) -> Result<()> {
    let statement = sqlx::query(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()",
    )
    .bind(LISTENER);
    let row = bounded("listen", db.timeout(), listener.fetch_one(statement)).await?;
    let others: i64 = row.try_get(0).map_err(|error| translate("listen", error))?;
    bus.set_peers(others > 0);
    Ok(())
}

fn receive(bus: &Bus, origin: Uuid, payload: &str) {
    let Some((sender, hints)) = decode(payload) else {
        // Somebody else's use of the channel, or a newer version's.
        bus.wake_everybody();
        return;
    };
    if sender == origin {
        return;
    }
    bus.set_peers(true);
    hints.into_iter().for_each(|hint| bus.received(hint));
}

/// The sender and one letter and 22 characters for each hint.
fn encode(origin: Uuid, hints: &[Outgoing]) -> String {
    let mut payload = BASE64URL_NOPAD.encode(origin.as_bytes());
    for hint in hints {
        let (letter, id) = match hint {
            Outgoing::Call(id) => ('c', id.uuid()),
            Outgoing::Shell(id) => ('h', id.uuid()),
            Outgoing::Hint(Hint::Queued(id)) => ('q', id.uuid()),
            Outgoing::Hint(Hint::CancelRequested(id)) => ('x', id.uuid()),
            Outgoing::Hint(Hint::SessionChanged(id)) => ('s', id.uuid()),
            Outgoing::Hint(Hint::Everything) => ('e', Uuid::nil()),
        };
        payload.push(letter);
        payload.push_str(&BASE64URL_NOPAD.encode(id.as_bytes()));
    }
    payload
}

fn decode(payload: &str) -> Option<(Uuid, Vec<Outgoing>)> {
    let id = |text: &[u8]| Uuid::from_slice(&BASE64URL_NOPAD.decode(text).ok()?).ok();
    let (sender, rest) = payload.as_bytes().split_at_checked(22)?;
    let hints = rest.chunks(23).map(|chunk| {
        let (letter, text) = chunk.split_first()?;
        let id = id(text)?;
        Some(match letter {
            b'c' => Outgoing::Call(CallId::from_uuid(id)),
            b'h' => Outgoing::Shell(ShellId::from_uuid(id)),
            b'q' => Outgoing::Hint(Hint::Queued(SessionId::from_uuid(id))),
            b'x' => Outgoing::Hint(Hint::CancelRequested(CallId::from_uuid(id))),
            b's' => Outgoing::Hint(Hint::SessionChanged(SessionId::from_uuid(id))),
            b'e' => Outgoing::Hint(Hint::Everything),
            _ => return None,
        })
    });
    Some((id(sender)?, hints.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hints_survive_the_payload_and_fit_into_it() {
        let origin = Uuid::from_u128(9);
        let hints: Vec<_> = (0..HINTS_PER_NOTIFY as u128)
            .map(|n| Outgoing::Hint(Hint::Queued(SessionId::from_uuid(Uuid::from_u128(n)))))
            .collect();
        let payload = encode(origin, &hints);
        assert!(payload.len() < 8_000);
        assert_eq!(decode(&payload), Some((origin, hints)));
    }

    proptest! {
        #[test]
        fn no_payload_panics(payload in ".{0,100}") {
            let _ = decode(&payload);
        }
    }
}
