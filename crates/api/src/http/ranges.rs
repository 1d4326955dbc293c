//! Byte ranges (RFC 9110, 14): one range, from the start or from the end.

use axum::http::header::{IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderName};

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

/// Reads `Range` of something that has no validator: `If-Range` never holds.
pub(crate) fn wanted(headers: &HeaderMap) -> Wanted {
    if headers.contains_key(IF_RANGE) { Wanted::Everything } else { range(headers) }
}

/// Reads `Range` of something with this strong validator.
pub(crate) fn wanted_of(headers: &HeaderMap, etag: &str) -> Wanted {
    match headers.get(IF_RANGE) {
        Some(validator) if validator.as_bytes() != etag.as_bytes() => Wanted::Everything,
        _ => range(headers),
    }
}

/// Whether a list of validators (`If-Match`, `If-None-Match`) names this one.
pub(crate) fn names(headers: &HeaderMap, list: HeaderName, etag: &str) -> bool {
    let values = headers.get_all(list).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| {
        let one = one.trim();
        one == "*" || one.strip_prefix("W/").unwrap_or(one) == etag
    })
}

impl Wanted {
    /// The bytes that are meant of so many: from, and one behind the last. Nothing when there are none.
    pub(crate) fn of(self, size_bytes: u64) -> Option<(u64, u64)> {
        let (from, to) = match self {
            Self::Everything => return Some((0, size_bytes)),
            Self::From(from, to) => (from, to.map_or(size_bytes, |to| to.saturating_add(1).min(size_bytes))),
            Self::Last(bytes) => (size_bytes.saturating_sub(bytes), size_bytes),
        };
        (from < to).then_some((from, to))
    }
}

fn range(headers: &HeaderMap) -> Wanted {
    let range = headers.get(RANGE).and_then(|value| value.to_str().ok());
    let Some(spec) = range.and_then(|range| range.trim().strip_prefix("bytes=")) else {
        return Wanted::Everything;
    };
    if spec.contains(',') {
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
    fn a_range_is_cut_to_what_is_there() {
        for (wanted, size, expected) in [
            (Wanted::Everything, 0, Some((0, 0))),
            (Wanted::From(2, Some(99)), 5, Some((2, 5))),
            (Wanted::From(5, None), 5, None),
            (Wanted::Last(2), 5, Some((3, 5))),
            (Wanted::Last(9), 5, Some((0, 5))),
            (Wanted::Last(0), 5, None),
        ] {
            assert_eq!(wanted.of(size), expected, "{wanted:?}");
        }
    }

    #[test]
    fn a_range_holds_for_its_own_version_alone() {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, "bytes=1-".parse().expect("a header"));
        assert_eq!(wanted_of(&headers, "\"a\""), Wanted::From(1, None));
        headers.insert(IF_RANGE, "\"a\"".parse().expect("a header"));
        assert_eq!(wanted_of(&headers, "\"a\""), Wanted::From(1, None));
        assert_eq!(wanted_of(&headers, "\"b\""), Wanted::Everything);
        assert_eq!(wanted(&headers), Wanted::Everything);
        assert!(names(&headers, IF_RANGE, "\"a\"") && !names(&headers, IF_RANGE, "\"b\""));
    }

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
