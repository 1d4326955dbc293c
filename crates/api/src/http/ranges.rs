//! Byte ranges (RFC 9110, 14): one range, from the start or from the end.

use axum::http::HeaderMap;
use axum::http::header::{IF_RANGE, RANGE};

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Everything: no range, or one that is not understood and therefore ignored.
    Everything,
    /// From a byte to another (inclusive) or the end.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

/// Reads `Range`. There is no validator, so `If-Range` never holds.
pub(crate) fn wanted(headers: &HeaderMap) -> Wanted {
    let range = headers.get(RANGE).and_then(|value| value.to_str().ok());
    let Some(spec) = range.and_then(|range| range.trim().strip_prefix("bytes=")) else {
        return Wanted::Everything;
    };
    if headers.contains_key(IF_RANGE) || spec.contains(',') {
        return Wanted::Everything;
    }
    let Some((first, last)) = spec.split_once('-') else { return Wanted::Everything };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Wanted::From(first, Some(last)),
        (Some(first), None) if last.is_empty() => Wanted::From(first, None),
        (None, Some(last)) if first.is_empty() => Wanted::Last(last),
        _ => Wanted::Everything,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_nonsense_is_ignored() {
        for (range, expected) in [
            ("bytes=0-0", Wanted::From(0, Some(0))),
            ("bytes=5-", Wanted::From(5, None)),
            ("bytes=-7", Wanted::Last(7)),
            ("bytes=99999999999999999999-", Wanted::From(u64::MAX, None)),
            ("bytes=5-4", Wanted::Everything),
            ("bytes=0-1,3-4", Wanted::Everything),
            ("bytes=a-b", Wanted::Everything),
            ("bytes=+1-", Wanted::Everything),
            ("bytes=-", Wanted::Everything),
            ("lines=1-2", Wanted::Everything),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().expect("a header"));
            assert_eq!(wanted(&headers), expected, "{range}");
        }
    }
}
