//! JSON on its way into jsonb, which has no U+0000: refused where a caller can mend it, replaced where nobody can.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Result, StoreError};

/// JSON text for a `::jsonb` cast. [`StoreError::Unstorable`] when some text in it has U+0000.
pub(crate) fn storable<T: Serialize + ?Sized>(
    operation: &'static str,
    field: &'static str,
    value: &T,
) -> Result<String> {
    let text = to_text(operation, value)?;
    if nul(&text).is_some() { Err(StoreError::Unstorable { operation, field }) } else { Ok(text) }
}

/// The same with U+FFFD in the place of U+0000, so that no content can make a write fail.
pub(crate) fn sanitised<T: Serialize + ?Sized>(operation: &'static str, value: &T) -> Result<String> {
    let mut text = to_text(operation, value)?;
    while let Some(at) = nul(&text) {
        text.replace_range(at..at + 6, "\\ufffd");
    }
    Ok(text)
}

/// A value as it is after it was stored, and its JSON text.
pub(crate) fn clean<T: Serialize + DeserializeOwned>(
    operation: &'static str,
    value: T,
) -> Result<(T, String)> {
    let text = sanitised(operation, &value)?;
    if text.contains("\\ufffd") {
        let value = serde_json::from_str(&text)
            .map_err(|error| StoreError::Internal { operation, source: Box::new(error) })?;
        return Ok((value, text));
    }
    Ok((value, text))
}

/// Text for a `text` column.
pub(crate) fn storable_text(operation: &'static str, field: &'static str, text: &str) -> Result<()> {
    if domain::text::is_storable(text) { Ok(()) } else { Err(StoreError::Unstorable { operation, field }) }
}

/// The same with U+FFFD in the place of U+0000.
pub(crate) fn sanitised_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn to_text<T: Serialize + ?Sized>(operation: &'static str, value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| StoreError::Internal { operation, source: Box::new(error) })
}

/// Where the escape of U+0000 begins in serialised JSON, if it is there. A backslash that is itself escaped does
/// not begin one.
fn nul(text: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = text[from..].find("\\u0000") {
        let at = from + found;
        let before = text.as_bytes()[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        if before % 2 == 0 {
            return Some(at);
        }
        from = at + 6;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn nul_is_found_and_only_nul() {
        assert!(storable("t", "f", &json!({"a": "\0"})).is_err());
        assert!(storable("t", "f", &json!({"a\0": 1})).is_err());
        assert!(storable("t", "f", &json!(["\\u0000", "\\\\u0000"])).is_ok());
        assert_eq!(
            sanitised("t", &json!("\\\0\\u0000\0")).ok(),
            Some(r#""\\\ufffd\\u0000\ufffd""#.to_owned())
        );
    }

    proptest! {
        #[test]
        fn sanitising_replaces_nul_and_nothing_else(text in "[a\\\\\0u0é\"]{0,40}") {
            let sanitised = sanitised("t", &text).expect("serialises");
            let back: Value = serde_json::from_str(&sanitised).expect("is JSON");
            prop_assert_eq!(back, Value::String(text.replace('\0', "\u{fffd}")));
        }
    }
}
