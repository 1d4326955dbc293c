//! What this service gave out and takes back: list cursors and stream tokens, signed so that only they are accepted.
//!
//! # Design notes
//!
//! Both carry a kind inside the signed text, so that neither can be used as the other, and name the tenant, so that a cursor or a
//! token of another tenant is one that was never given. Verification is constant in time; a refusal says nothing.

use chrono::{DateTime, Utc};
use data_encoding::BASE64URL_NOPAD;
use domain::{ArtifactId, CallId, KeyId, TenantId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

type HmacSha256 = Hmac<Sha256>;

const CURSOR: u8 = 1;
const STREAM: u8 = 2;
const ARTIFACT: u8 = 3;
const TAG_BYTES: usize = 16;

/// Signs and verifies.
#[derive(Clone)]
pub(crate) struct Signer {
    mac: HmacSha256,
}

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The events of a call.
    Call(CallId),
    /// The content of an artifact.
    Artifact(ArtifactId),
}

impl Target {
    /// What the paths that it opens begin with.
    pub(crate) fn prefix(self) -> String {
        match self {
            Self::Call(id) => format!("/v1/calls/{id}/"),
            Self::Artifact(id) => format!("/v1/artifacts/{id}/"),
        }
    }

    const fn kind(self) -> u8 {
        match self {
            Self::Call(_) => STREAM,
            Self::Artifact(_) => ARTIFACT,
        }
    }

    const fn uuid(self) -> Uuid {
        match self {
            Self::Call(id) => id.uuid(),
            Self::Artifact(id) => id.uuid(),
        }
    }
}

/// What a token allows: to read one thing, in the name of one key, until a time. Without a key it was made by the subject of an
/// issuer's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamToken {
    pub(crate) tenant_id: TenantId,
    pub(crate) key_id: Option<KeyId>,
    pub(crate) target: Target,
    pub(crate) expires_at: DateTime<Utc>,
}

impl Signer {
    pub(crate) fn new(key: &[u8]) -> Self {
        Self { mac: HmacSha256::new_from_slice(key).expect("HMAC takes keys of any length") }
    }

    /// A cursor that only the same list of the same tenant, with the same filter, takes back.
    pub(crate) fn cursor(&self, list: &str, owner: Option<TenantId>, after: Uuid) -> String {
        self.seal(CURSOR, after.as_bytes(), &cursor_context(list, owner))
    }

    /// Where a cursor points; `None` when it is not one of this list.
    pub(crate) fn read_cursor(&self, list: &str, owner: Option<TenantId>, cursor: &str) -> Option<Uuid> {
        let payload = self.open(CURSOR, cursor, &cursor_context(list, owner))?;
        Uuid::from_slice(&payload).ok()
    }

    pub(crate) fn stream_token(&self, token: &StreamToken) -> String {
        let mut payload = Vec::with_capacity(56);
        payload.extend_from_slice(token.tenant_id.uuid().as_bytes());
        payload.extend_from_slice(token.key_id.map_or(Uuid::nil(), KeyId::uuid).as_bytes());
        payload.extend_from_slice(token.target.uuid().as_bytes());
        payload.extend_from_slice(&token.expires_at.timestamp().to_be_bytes());
        self.seal(token.target.kind(), &payload, b"")
    }

    /// A token that is genuine and has not expired.
    pub(crate) fn read_stream_token(&self, token: &str, now: DateTime<Utc>) -> Option<StreamToken> {
        let (payload, target): (_, fn(Uuid) -> Target) = match self.open(STREAM, token, b"") {
            Some(payload) => (payload, |id| Target::Call(CallId::from_uuid(id))),
            None => (self.open(ARTIFACT, token, b"")?, |id| Target::Artifact(ArtifactId::from_uuid(id))),
        };
        let (ids, expires) = payload.split_at_checked(48)?;
        let expires_at = DateTime::from_timestamp(i64::from_be_bytes(expires.try_into().ok()?), 0)?;
        let id = |from: usize| Uuid::from_slice(ids.get(from..from + 16)?).ok();
        let token = StreamToken {
            tenant_id: TenantId::from_uuid(id(0)?),
            key_id: Some(id(16)?).filter(|id| !id.is_nil()).map(KeyId::from_uuid),
            target: target(id(32)?),
            expires_at,
        };
        (now < expires_at).then_some(token)
    }

    fn seal(&self, kind: u8, payload: &[u8], context: &[u8]) -> String {
        let tag = self.mac(kind, payload, context).finalize().into_bytes();
        let mut sealed = Vec::with_capacity(TAG_BYTES + payload.len());
        sealed.extend_from_slice(&tag[..TAG_BYTES]);
        sealed.extend_from_slice(payload);
        BASE64URL_NOPAD.encode(&sealed)
    }

    fn open(&self, kind: u8, sealed: &str, context: &[u8]) -> Option<Vec<u8>> {
        const LONGEST: usize = 256;
        if sealed.len() > LONGEST {
            return None;
        }
        let sealed = BASE64URL_NOPAD.decode(sealed.as_bytes()).ok()?;
        let (tag, payload) = sealed.split_at_checked(TAG_BYTES)?;
        self.mac(kind, payload, context).verify_truncated_left(tag).ok()?;
        Some(payload.to_vec())
    }

    fn mac(&self, kind: u8, payload: &[u8], context: &[u8]) -> HmacSha256 {
        let mut mac = self.mac.clone();
        mac.update(&[kind]);
        mac.update(&(payload.len() as u64).to_be_bytes());
        mac.update(payload);
        mac.update(context);
        mac
    }
}

fn cursor_context(list: &str, owner: Option<TenantId>) -> Vec<u8> {
    let mut context = owner.map_or([0; 16], |owner| owner.uuid().into_bytes()).to_vec();
    context.extend_from_slice(list.as_bytes());
    context
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn signer() -> Signer {
        Signer::new(&[7; 32])
    }

    fn token() -> StreamToken {
        StreamToken {
            tenant_id: TenantId::from_uuid(Uuid::from_u128(1)),
            key_id: Some(KeyId::from_uuid(Uuid::from_u128(2))),
            target: Target::Call(CallId::from_uuid(Uuid::from_u128(3))),
            expires_at: DateTime::from_timestamp(1_000, 0).expect("in range"),
        }
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).expect("in range")
    }

    #[test]
    fn a_cursor_belongs_to_its_list_and_tenant() {
        let (mine, theirs) = (Some(token().tenant_id), Some(TenantId::from_uuid(Uuid::from_u128(9))));
        let cursor = signer().cursor("calls?status=queued", mine, Uuid::from_u128(5));
        assert_eq!(signer().read_cursor("calls?status=queued", mine, &cursor), Some(Uuid::from_u128(5)));
        assert_eq!(signer().read_cursor("calls", mine, &cursor), None);
        assert_eq!(signer().read_cursor("calls?status=queued", theirs, &cursor), None);
        assert_eq!(Signer::new(&[8; 32]).read_cursor("calls?status=queued", mine, &cursor), None);
    }

    #[test]
    fn a_token_expires_and_is_no_cursor() {
        let sealed = signer().stream_token(&token());
        assert_eq!(signer().read_stream_token(&sealed, at(999)), Some(token()));
        assert_eq!(signer().read_stream_token(&sealed, at(1_000)), None);
        assert_eq!(signer().read_cursor("", None, &sealed), None);
        let without_key = StreamToken { key_id: None, ..token() };
        assert_eq!(
            signer().read_stream_token(&signer().stream_token(&without_key), at(999)),
            Some(without_key)
        );
    }

    #[test]
    fn a_link_to_an_artifact_is_none_to_a_call() {
        let target = Target::Artifact(ArtifactId::from_uuid(Uuid::from_u128(3)));
        let link = StreamToken { target, ..token() };
        let sealed = signer().stream_token(&link);
        assert_ne!(sealed, signer().stream_token(&token()));
        assert_eq!(signer().read_stream_token(&sealed, at(999)), Some(link));
    }

    proptest! {
        #[test]
        fn one_changed_character_is_refused(place in any::<prop::sample::Index>(), by in 1u8..63) {
            let sealed = signer().stream_token(&token());
            let mut bytes = sealed.clone().into_bytes();
            let place = place.index(bytes.len());
            let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            let old = alphabet.iter().position(|c| *c == bytes[place]).expect("in the alphabet");
            bytes[place] = alphabet[(old + by as usize) % 64];
            let changed = String::from_utf8(bytes).expect("ascii");
            prop_assert_eq!(signer().read_stream_token(&changed, at(0)), None);
        }

        #[test]
        fn no_text_panics(text in ".{0,300}") {
            prop_assert_eq!(signer().read_stream_token(&text, at(0)), None);
            prop_assert_eq!(signer().read_cursor("x", None, &text), None);
        }
    }
}
