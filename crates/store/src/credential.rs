//! The text of an API key: `th_<key id>_<secret><check sum>`. Its form is checked without a query; its secret is kept as an HMAC.
//!
//! # Design notes
//!
//! The secret is 43 characters of base62 (256 bits), the check sum is the CRC-32 of everything before it in 6. So a scanner can recognise
//! a leaked key, a mistyped one costs no query, and double-clicking selects the whole. The hash needs no slow function,
//! as nobody guesses 256 bits; it is keyed, so that a stolen table alone does not even allow comparing.

use domain::KeyId;
use hmac::{Hmac, KeyInit, Mac};
use rand::RngExt;
use sha2::Sha256;
use subtle::ConstantTimeEq;

const PREFIX: &str = "th_";
const ID_CHARS: usize = 26;
const SECRET_CHARS: usize = 43;
const SUM_CHARS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The text of a new key: shown once, never kept. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct PlainKey(String);

impl PlainKey {
    /// A fresh secret for a key.
    pub(crate) fn generate(id: KeyId) -> Self {
        let mut random = rand::rng();
        let mut text = format!("{PREFIX}{}_", id_text(id));
        text.extend((0..SECRET_CHARS).map(|_| char::from(BASE62[random.random_range(0..BASE62.len())])));
        text.push_str(&check_sum(&text));
        Self(text)
    }

    /// The text that a client sends as its bearer token.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for PlainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PlainKey(…)")
    }
}

/// A presented text that has the form of a key and the right check sum.
pub(crate) struct Presented<'a> {
    key_id: KeyId,
    text: &'a str,
}

impl<'a> Presented<'a> {
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        if text.len() != PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS + SUM_CHARS || !text.is_ascii() {
            return None;
        }
        let rest = text.strip_prefix(PREFIX)?;
        let (id, secret) = rest.split_at(ID_CHARS);
        let secret = secret.strip_prefix('_')?;
        if !secret.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return None;
        }
        let key_id: KeyId = format!("{}_{id}", KeyId::PREFIX).parse().ok()?;
        let (summed, sum) = text.split_at(text.len() - SUM_CHARS);
        (check_sum(summed) == sum).then_some(Self { key_id, text })
    }

    pub(crate) fn key_id(&self) -> KeyId {
        self.key_id
    }
}

/// Key of the hash under which keys are kept.
pub(crate) struct Pepper(Hmac<Sha256>);

impl std::fmt::Debug for Pepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pepper(…)")
    }
}

impl Pepper {
    pub(crate) fn new(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC takes keys of any length"))
    }

    pub(crate) fn hash(&self, key: &PlainKey) -> Digest {
        self.digest(&key.0)
    }

    pub(crate) fn hash_presented(&self, presented: &Presented<'_>) -> Digest {
        self.digest(presented.text)
    }

    fn digest(&self, text: &str) -> Digest {
        let mut mac = self.0.clone();
        mac.update(text.as_bytes());
        Digest(mac.finalize().into_bytes().into())
    }
}

/// The keyed hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    pub(crate) fn to_vec(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Compares in constant time.
    pub(crate) fn matches(&self, stored: &[u8]) -> bool {
        bool::from(self.0.as_slice().ct_eq(stored))
    }
}

fn id_text(id: KeyId) -> String {
    let text = id.to_string();
    text.strip_prefix(KeyId::PREFIX).and_then(|rest| rest.strip_prefix('_')).unwrap_or(&text).to_owned()
}

fn check_sum(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes()) as usize;
    let mut digits = [b'0'; SUM_CHARS];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[rest % BASE62.len()];
        rest /= BASE62.len();
    }
    digits.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn key() -> PlainKey {
        PlainKey::generate(KeyId::from_uuid(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0001)))
    }

    #[test]
    fn a_generated_key_parses_and_names_its_row() {
        let key = key();
        let presented = Presented::parse(key.reveal()).expect("parses");
        assert_eq!(presented.key_id().uuid().as_u128(), 0x0192_0000_0000_7000_8000_0000_0000_0001);
        assert_eq!(format!("{key:?}"), "PlainKey(…)");
    }

    #[test]
    fn any_changed_character_is_noticed() {
        let key = key();
        for at in 0..key.0.len() {
            let mut bytes = key.0.clone().into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            let text = String::from_utf8(bytes).expect("ascii");
            assert!(Presented::parse(&text).is_none(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,100}", cut in 0usize..79) {
            let _ = Presented::parse(&text);
            let _ = Presented::parse(&key().reveal()[..cut]);
            let _ = Presented::parse(&format!("th_{}", text));
        }
    }
}
