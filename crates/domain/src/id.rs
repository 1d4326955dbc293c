//! Typed ids: a prefix and a UUIDv7 in lower-case Crockford base32 (26 characters, sortable as text).
//!
//! The database keeps the uuid, the wire carries the text. New ids take their time from the database's clock,
//! so `store` makes them; [`uuid_at`] is the pure part.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use chrono::{DateTime, Utc};
use data_encoding::{Encoding, Specification};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a text is not an id of the expected kind. Its sentence repeats nothing of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id here is `{expected}_` and 26 characters of lower-case base32")]
pub struct ParseIdError {
    expected: &'static str,
}

fn encoding() -> &'static Encoding {
    static ENCODING: OnceLock<Encoding> = OnceLock::new();
    ENCODING.get_or_init(|| {
        let mut specification = Specification::new();
        specification.symbols.push_str("0123456789abcdefghjkmnpqrstvwxyz");
        specification.encoding().expect("32 distinct symbols make an encoding")
    })
}

/// A version 7 uuid for a time (milliseconds since 1970) and 74 random bits.
#[must_use]
pub fn uuid_at(at: DateTime<Utc>, random: [u8; 10]) -> Uuid {
    uuid::Builder::from_unix_timestamp_millis(at.timestamp_millis().max(0) as u64, &random).into_uuid()
}

/// The time that a version 7 uuid carries, to the millisecond.
#[must_use]
pub fn time_of(id: Uuid) -> Option<DateTime<Utc>> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// The text before the underscore.
            pub const PREFIX: &'static str = $prefix;

            /// Names an existing uuid.
            #[must_use]
            pub const fn from_uuid(id: Uuid) -> Self {
                Self(id)
            }

            /// The uuid that the database keeps.
            #[must_use]
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}_{}", $prefix, encoding().encode(self.0.as_bytes()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let error = ParseIdError { expected: $prefix };
                let encoded = text.strip_prefix(concat!($prefix, "_")).ok_or(error)?;
                let bytes = encoding().decode(encoded.as_bytes()).map_err(|_| error)?;
                Uuid::from_slice(&bytes).map(Self).map_err(|_| error)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// Who pays and who is isolated.
    TenantId = "ten";
    /// An API key.
    KeyId = "key";
    /// A workspace and what runs over it.
    SessionId = "sess";
    /// One use of a tool.
    CallId = "call";
    /// A command in the background.
    ShellId = "shell";
    /// An interpreter whose state lasts from call to call.
    ContextId = "ctx";
    /// A file kept beyond the sandbox.
    ArtifactId = "art";
    /// A built Python package that a tenant keeps for its sessions.
    WheelId = "whl";
    /// A container that serves a session, or waits to.
    SandboxId = "sbx";
    /// A machine with a container engine.
    HostId = "host";
    /// A process that claims calls.
    WorkerId = "wrk";
    /// One HTTP request.
    RequestId = "req";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_survive_text_and_keep_their_order(a in any::<u128>(), b in any::<u128>()) {
            let (first, second) = (CallId::from_uuid(Uuid::from_u128(a)), CallId::from_uuid(Uuid::from_u128(b)));
            prop_assert_eq!(first.to_string().parse::<CallId>(), Ok(first));
            prop_assert_eq!(first.to_string().cmp(&second.to_string()), a.cmp(&b));
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = text.parse::<SessionId>();
        }
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        let call = CallId::from_uuid(Uuid::from_u128(7));
        assert!(call.to_string().parse::<SessionId>().is_err());
        assert!(call.to_string().to_uppercase().parse::<CallId>().is_err());
    }

    #[test]
    fn a_uuid_carries_its_time() {
        let at = DateTime::from_timestamp_millis(1_790_000_000_123).expect("in range");
        assert_eq!(time_of(uuid_at(at, [0xff; 10])), Some(at));
    }
}
