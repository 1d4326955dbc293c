//! What a caller has left, as the fields `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers, from
//! its eighth version on).

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::rates::{Quota, WINDOW};
use crate::service::rates::Quotas;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Adds both fields.
pub(crate) fn write(quotas: &Quotas, headers: &mut HeaderMap) {
    let policy = list(quotas, |name, quota| format!("\"{name}\";q={};w={}", quota.limit, WINDOW.as_secs()));
    let limit = list(quotas, |name, quota| {
        format!("\"{name}\";r={};t={}", quota.left, quota.whole_in.as_millis().div_ceil(1_000))
    });
    headers.extend(policy.map(|value| (POLICY, value)));
    headers.extend(limit.map(|value| (LIMIT, value)));
}

fn list(quotas: &Quotas, item: impl Fn(&str, &Quota) -> String) -> Option<HeaderValue> {
    let items: Vec<_> = quotas.0.iter().map(|(name, quota)| item(name, quota)).collect();
    HeaderValue::try_from(items.join(", ")).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_fields_are_structured_lists() {
        let quota = |limit, left, whole_ms| Quota {
            limit,
            left,
            whole_in: Duration::from_millis(whole_ms),
            wait: Duration::ZERO,
        };
        let mut headers = HeaderMap::new();
        write(&Quotas(vec![("tenant", quota(600, 599, 100)), ("key", quota(60, 0, 59_001))]), &mut headers);
        assert_eq!(headers[POLICY], "\"tenant\";q=600;w=60, \"key\";q=60;w=60");
        assert_eq!(headers[LIMIT], "\"tenant\";r=599;t=1, \"key\";r=0;t=60");
    }
}
