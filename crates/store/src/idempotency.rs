//! Idempotency keys: the same key and request give the original; another request names the differing fields.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

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

fn digest(value: &Value) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mismatch_names_the_fields_that_differ() {
        let first = Idempotency::of("calls", "k", &json!({"tool": "bash", "timeout_ms": 1, "arguments": {"a": 1}}));
        let second = Idempotency::of("calls", "k", &json!({"tool": "bash", "arguments": {"a": 2}}));
        assert_eq!(differing(&first.request, &second.request), ["arguments", "timeout_ms"]);
        assert_eq!(differing(&first.request, &first.request), Vec::<String>::new());
    }
}
