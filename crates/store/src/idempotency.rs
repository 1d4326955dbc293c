//! Idempotency keys: the same key and request give the original; another request names the differing fields.

use std::collections::BTreeMap;

use domain::{TenantContext, TenantId};
use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::{Conn, read};
use crate::{Result, Store};

/// A key with what it was used for. Kept for [`domain::limits::IDEMPOTENCY_KEEP_HOURS`], in the commit that creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// Method and path pattern: the same key may be used for different operations.
    pub operation: &'static str,
    /// The caller's key, at most [`domain::limits::IDEMPOTENCY_KEY_BYTES`].
    pub key: String,
    /// SHA-256 in hex of each top-level field of the request.
    pub request: BTreeMap<String, String>,
}

impl Idempotency {
    /// Hashes each top-level field of a request. Path parameters that matter (the session, say) belong in `request` too.
    #[must_use]
    pub fn of(operation: &'static str, key: impl Into<String>, request: &Value) -> Self {
        let fields = match request {
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), digest(value))).collect()
            }
            other => BTreeMap::from([(String::new(), digest(other))]),
        };
        Self { operation, key: key.into(), request: fields }
    }
}

/// SHA-256 of a value's JSON, in hex.
pub(crate) fn digest(value: &Value) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(value.to_string().as_bytes()))
}

/// Names of the fields in which two requests differ, sorted.
pub(crate) fn differing(first: &BTreeMap<String, String>, second: &BTreeMap<String, String>) -> Vec<String> {
    let mut names: Vec<_> = first
        .keys()
        .chain(second.keys())
        .filter(|name| first.get(*name) != second.get(*name))
        .cloned()
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The request of an idempotency key, as its row keeps it.
pub(crate) type Request = BTreeMap<String, String>;

/// What is known of a key.
pub(crate) enum Seen {
    /// Nothing, or there is no key.
    New,
    /// It made this, with the same request.
    Same(Uuid),
    /// It was used with other values in these fields.
    Other(Vec<String>),
}

/// Compares a request with the one that a key was first used for.
pub(crate) fn compare(
    target: Uuid,
    first: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Seen {
    let fields = differing(first, now);
    if fields.is_empty() { Seen::Same(target) } else { Seen::Other(fields) }
}

/// Looks a key up in the caller's transaction.
pub(crate) async fn seen(conn: &mut Conn, tenant: TenantId, key: Option<&Idempotency>) -> Result<Seen> {
    let Some(key) = key else {
        return Ok(Seen::New);
    };
    crate::json::storable_text("look up idempotency key", "idempotency key", &key.key)?;
    let rows = conn
        .all(
            sqlx::query(
                "SELECT target, request FROM idempotency_keys WHERE tenant_id = $1 AND operation = $2 AND key = $3",
            )
            .bind(tenant.uuid())
            .bind(key.operation)
            .bind(&key.key),
        )
        .await?;
    let known = read("look up idempotency key", &rows, |row| {
        Ok((
            row.try_get::<Uuid, _>("target")?,
            row.try_get::<Json<BTreeMap<String, String>>, _>("request")?.0,
        ))
    })?;
    Ok(match known.first() {
        Some((target, first)) => compare(*target, first, &key.request),
        None => Seen::New,
    })
}

/// What an idempotency key was used for before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// The same request, which made this: a call's id, or a session's.
    Same(Uuid),
    /// A request with other values in these fields.
    Other(Vec<String>),
}

impl Store {
    /// What an idempotency key has been used for already, if it has.
    ///
    /// # Errors
    /// When the key cannot be stored as text, or the database does not answer.
    pub async fn accepted(&self, context: &TenantContext, key: &Idempotency) -> Result<Option<Accepted>> {
        let mut conn = self.db().tenant("look up idempotency key", context).await?;
        let seen = seen(&mut conn, context.tenant_id(), Some(key)).await?;
        conn.end().await?;
        Ok(match seen {
            Seen::New => None,
            Seen::Same(target) => Some(Accepted::Same(target)),
            Seen::Other(fields) => Some(Accepted::Other(fields)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mismatch_names_the_fields_that_differ() {
        let first =
            Idempotency::of("calls", "k", &json!({"tool": "bash", "timeout_ms": 1, "arguments": {"a": 1}}));
        let second = Idempotency::of("calls", "k", &json!({"tool": "bash", "arguments": {"a": 2}}));
        assert_eq!(differing(&first.request, &second.request), ["arguments", "timeout_ms"]);
        assert_eq!(differing(&first.request, &first.request), Vec::<String>::new());
    }
}
