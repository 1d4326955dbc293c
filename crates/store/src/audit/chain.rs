//! The chain of one tenant's audit rows: what is hashed, and how a chain's end is signed. Pure; no queries.
//!
//! # Design notes
//!
//! * Every field is hashed with its length before it, so that no text can be moved from one field into the next. `jsonb` is
//!   hashed as Postgres prints it, which is canonical (keys in one order, numbers as they were given).
//! * Heads are signed with HMAC-SHA-256 and not with a public-key signature: who verifies is who operates, no crate for
//!   such signatures was in the tree, and `hmac` is. A head names its key, so that another scheme can follow.
//! * Who has the database alone can change rows and hash the chain anew, but not sign its head. Who has the key as
//!   well can do both: a head kept elsewhere (`toolhost audit checkpoint`) is what then tells.

use chrono::{DateTime, Utc};
use domain::TenantId;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// SHA-256.
pub(super) type Hash = [u8; 32];

/// What comes before the first link.
pub(super) const NOTHING: Hash = [0; 32];

/// Whose chain: a tenant's, or the installation's own for rows above tenants.
pub(super) fn chain_of(tenant: Option<TenantId>) -> Uuid {
    tenant.map_or(Uuid::nil(), TenantId::uuid)
}

/// The tenant of a chain.
pub(super) fn tenant_of(chain: Uuid) -> Option<TenantId> {
    (!chain.is_nil()).then(|| TenantId::from_uuid(chain))
}

/// One audit row as it is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) tenant: Option<Uuid>,
    pub(super) at: DateTime<Utc>,
    pub(super) principal: String,
    pub(super) action: String,
    pub(super) target: Option<String>,
    pub(super) allowed: bool,
    pub(super) reason: Option<String>,
    pub(super) details: String,
}

impl Row {
    /// The hash of the link that holds this row.
    pub(super) fn link(&self, chain: Uuid, seq: i64, previous: &Hash) -> Hash {
        let mut hash = Sha256::new();
        hash.update(b"toolhost audit link 1\0");
        hash.update(chain.as_bytes());
        hash.update(seq.to_be_bytes());
        hash.update(previous);
        hash.update(self.id.to_be_bytes());
        hash.update(self.tenant.unwrap_or_default().as_bytes());
        hash.update(self.at.timestamp_micros().to_be_bytes());
        hash.update([u8::from(self.allowed)]);
        for text in [Some(&self.principal), Some(&self.action), self.target.as_ref(), self.reason.as_ref()]
            .into_iter()
            .chain([Some(&self.details)])
        {
            // One more than the length, so that nothing and an empty text differ.
            hash.update(text.map_or(0, |text| text.len() as u64 + 1).to_be_bytes());
            hash.update(text.map_or("", String::as_str));
        }
        hash.finalize().into()
    }
}

/// The key that signs heads, and those that may have signed older ones.
#[derive(Clone)]
pub struct AuditKeys {
    signing: Key,
    previous: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    id: String,
    mac: Hmac<Sha256>,
}

impl Key {
    fn new(secret: &[u8]) -> Self {
        let id = Sha256::new().chain_update(b"toolhost audit key id\0").chain_update(secret).finalize();
        let mac = Hmac::new_from_slice(secret).expect("HMAC takes keys of any length");
        Self { id: data_encoding::HEXLOWER.encode(&id[..8]), mac }
    }

    fn over(&self, head: &AuditHead) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(b"toolhost audit head 1\0");
        mac.update(chain_of(head.tenant_id).as_bytes());
        mac.update(&head.sequence.to_be_bytes());
        mac.update(&head.hash);
        mac.update(&head.signed_at.timestamp_micros().to_be_bytes());
        mac
    }

    fn over_text(&self, purpose: &[u8], text: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&(purpose.len() as u64).to_be_bytes());
        mac.update(purpose);
        mac.update(text);
        mac
    }
}

impl AuditKeys {
    /// One key.
    #[must_use]
    pub fn new(signing: &[u8]) -> Self {
        Self { signing: Key::new(signing), previous: Vec::new() }
    }

    /// A key made from the pepper of API keys, for installations that set none.
    #[must_use]
    pub fn of_pepper(pepper: &[u8]) -> Self {
        let mut mac: Hmac<Sha256> = Hmac::new_from_slice(pepper).expect("HMAC takes keys of any length");
        mac.update(b"toolhost audit signing key");
        Self::new(&mac.finalize().into_bytes())
    }

    /// Another key signs from now on; signatures of the earlier ones stay good.
    #[must_use]
    pub fn then(mut self, signing: &[u8]) -> Self {
        self.previous.push(std::mem::replace(&mut self.signing, Key::new(signing)));
        self
    }

    /// Signs a chain's end.
    pub(super) fn sign(&self, chain: Uuid, sequence: i64, hash: Hash, signed_at: DateTime<Utc>) -> AuditHead {
        let mut head = AuditHead {
            tenant_id: tenant_of(chain),
            sequence,
            hash,
            signed_at,
            key_id: self.signing.id.clone(),
            signature: NOTHING,
        };
        head.signature = self.signing.over(&head).finalize().into_bytes().into();
        head
    }

    /// Whether one of the keys has signed this.
    #[must_use]
    pub fn signed(&self, head: &AuditHead) -> bool {
        std::iter::once(&self.signing)
            .chain(&self.previous)
            .filter(|key| key.id == head.key_id)
            .any(|key| key.over(head).verify_slice(&head.signature).is_ok())
    }
}

impl AuditKeys {
    /// Signs a text for a purpose: what is signed for one is never good for another. The key's name and the signature.
    pub(crate) fn sign_text(&self, purpose: &[u8], text: &[u8]) -> (String, Hash) {
        (self.signing.id.clone(), self.signing.over_text(purpose, text).finalize().into_bytes().into())
    }

    /// Whether one of the keys has signed this text for the purpose.
    pub(crate) fn has_signed(&self, purpose: &[u8], text: &[u8], key_id: &str, signature: &Hash) -> bool {
        std::iter::once(&self.signing)
            .chain(&self.previous)
            .filter(|key| key.id == key_id)
            .any(|key| key.over_text(purpose, text).verify_slice(signature).is_ok())
    }
}

impl std::fmt::Debug for AuditKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditKeys").field("signing", &self.signing.id).finish_non_exhaustive()
    }
}

/// A chain's end, signed. Kept outside the database it is a checkpoint: the chain must contain it for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditHead {
    /// Whose chain; null for the installation's own.
    pub tenant_id: Option<TenantId>,
    /// Links in the chain.
    pub sequence: i64,
    /// Hash of the last one.
    #[serde(with = "hex")]
    pub hash: [u8; 32],
    /// When it was signed.
    pub signed_at: DateTime<Utc>,
    /// Which key has signed.
    pub key_id: String,
    /// HMAC-SHA-256 over the above.
    #[serde(with = "hex")]
    pub signature: [u8; 32],
}

pub(crate) mod hex {
    use data_encoding::HEXLOWER;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = HEXLOWER.decode(text.as_bytes()).map_err(D::Error::custom)?;
        bytes.try_into().map_err(|_| D::Error::custom("32 bytes in hexadecimal are needed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            id: 1,
            tenant: None,
            at: DateTime::from_timestamp_micros(1_700_000_000_000_001).expect("in range"),
            principal: "{}".to_owned(),
            action: "a".to_owned(),
            target: Some("b".to_owned()),
            allowed: true,
            reason: None,
            details: "{}".to_owned(),
        }
    }

    #[test]
    fn every_field_counts_and_none_runs_into_the_next() {
        let all = [
            row(),
            Row { id: 2, ..row() },
            Row { tenant: Some(Uuid::from_u128(1)), ..row() },
            Row { at: row().at + chrono::TimeDelta::microseconds(1), ..row() },
            Row { principal: "{ }".to_owned(), ..row() },
            Row { action: "ab".to_owned(), target: Some(String::new()), ..row() },
            Row { target: None, ..row() },
            Row { target: None, reason: Some("b".to_owned()), ..row() },
            Row { allowed: false, ..row() },
            Row { reason: Some(String::new()), ..row() },
            Row { details: "[]".to_owned(), ..row() },
        ];
        let mut hashes: Vec<_> = all.iter().map(|row| row.link(Uuid::nil(), 1, &NOTHING)).collect();
        hashes.push(row().link(Uuid::nil(), 2, &NOTHING));
        hashes.push(row().link(Uuid::from_u128(1), 1, &NOTHING));
        hashes.push(row().link(Uuid::nil(), 1, &[1; 32]));
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }

    #[test]
    fn a_head_is_good_under_the_key_that_signed_it_and_its_successor_that_knows_it() {
        let (old, other) = (AuditKeys::new(b"old"), AuditKeys::new(b"other"));
        let head = old.sign(Uuid::from_u128(5), 7, [3; 32], row().at);
        assert!(old.signed(&head) && !other.signed(&head));
        assert!(AuditKeys::new(b"old").then(b"new").signed(&head));
        for changed in [
            AuditHead { tenant_id: None, ..head.clone() },
            AuditHead { sequence: 6, ..head.clone() },
            AuditHead { hash: [4; 32], ..head.clone() },
            AuditHead { signed_at: row().at + chrono::TimeDelta::microseconds(1), ..head.clone() },
            AuditHead { key_id: other.signing.id.clone(), ..head.clone() },
        ] {
            assert!(!old.signed(&changed));
        }
        let text = serde_json::to_string(&head).expect("serialises");
        assert_eq!(serde_json::from_str::<AuditHead>(&text).expect("reads"), head);
    }
}
