//! Tokens of issuers that the operator trusts (RFC 7519): who they speak for, and that they are genuine. Knows no database.
//!
//! # Design notes
//!
//! * The algorithm belongs to the key. A token's header only has to agree with it, so `none` and an RSA key used as an HMAC secret
//!   find no key at all. What a header says about where a key lies (`jku`, `x5u`, `jwk`, `x5c`) is refused, not followed.
//! * Header and claims are read by our own strict parser first (size, depth, duplicate names); `jsonwebtoken` reads keys, `ring` checks
//!   signatures. Claims are judged after the signature, by the database's clock.
//! * `exp`, `aud`, `iss`, `sub` and a tenant are required. A token can never be an operator's.
//! * Every refusal is the same 401 to its bearer. The reason is one of a closed list, for the audit trail.

mod claims;
mod config;
mod jwks;
mod key;
mod token;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use store::TokenSubject;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use config::{IssuerConfig, IssuerError, IssuerKey, JwksConfig, KeyMaterial, TokenAlgorithm};

use self::jwks::Jwks;
use self::key::Key;
use self::token::Token;

/// Why a token is refused, in a word for the record.
pub(crate) type Refusal = &'static str;

/// Its time is over.
const EXPIRED: Refusal = "token_expired";

/// Why a token speaks for nobody now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unverified {
    /// It is wrong, whoever is asked.
    Refused(Refusal),
    /// Its key is not known, and its issuer cannot be asked just now, or was a moment ago: it may be right.
    UnknownKey,
    /// No key of its issuer was read yet.
    NoKeys,
}

impl From<Refusal> for Unverified {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// No key of this name or kind is known.
pub(crate) const UNKNOWN_KEY: Refusal = "token_key";

/// A token that is genuine and holds now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) subject: TokenSubject,
    /// When it stops holding, leeway included.
    pub(crate) until: DateTime<Utc>,
}

/// Everybody whose tokens are taken.
#[derive(Debug, Default)]
pub(crate) struct Issuers {
    all: Vec<Issuer>,
}

#[derive(Debug)]
struct Issuer {
    config: IssuerConfig,
    keys: Vec<Key>,
    jwks: Option<Arc<Jwks>>,
}

impl Issuers {
    pub(crate) fn new(configs: &[IssuerConfig]) -> Result<Self, IssuerError> {
        let mut all: Vec<Issuer> = Vec::new();
        for config in configs {
            config.check()?;
            if all.iter().any(|issuer| issuer.config.issuer == config.issuer) {
                return Err(config.error("is configured twice"));
            }
            let keys = config.keys.iter().map(|given| Key::given(config, given)).collect::<Result<_, _>>()?;
            let jwks = config.jwks.as_ref().map(|jwks| Jwks::new(config, jwks)).transpose()?;
            all.push(Issuer { config: config.clone(), keys, jwks: jwks.map(Arc::new) });
        }
        Ok(Self { all })
    }

    /// Whether a text is to be taken for a token: somebody's tokens are taken, and it has their form.
    pub(crate) fn takes(&self, text: &str) -> bool {
        !self.all.is_empty() && !text.starts_with("th_") && text.contains('.')
    }

    /// Keeps the key sets fresh until `stop`.
    pub(crate) fn keep_fresh(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        for jwks in self.all.iter().filter_map(|issuer| issuer.jwks.clone()) {
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = jwks.keep_fresh() => {}
                }
            });
        }
    }

    /// Who a token speaks for at this time.
    pub(crate) async fn verify(&self, text: &str, now: DateTime<Utc>) -> Result<Verified, Unverified> {
        let token = Token::parse(text)?;
        let named = token.issuer()?;
        let issuer = self.all.iter().find(|issuer| issuer.config.issuer == named);
        let issuer = issuer.ok_or("token_issuer")?;
        issuer.check_signature(&token).await?;
        Ok(claims::check(&issuer.config, &token.claims, now)?)
    }
}

impl Issuer {
    async fn check_signature(&self, token: &Token<'_>) -> Result<(), Unverified> {
        let Some(jwks) = &self.jwks else { return Ok(token.check_signature(&self.keys)?) };
        let known = || self.keys.iter().cloned().chain(jwks.keys().iter().cloned()).collect::<Vec<_>>();
        match token.check_signature(&known()) {
            Err(UNKNOWN_KEY) => {}
            checked => return Ok(checked?),
        }
        // It may be a key that came a moment ago.
        let was_read_since = jwks.look_again().await;
        match token.check_signature(&known()) {
            Err(UNKNOWN_KEY) if !jwks.was_read() => Err(Unverified::NoKeys),
            Err(UNKNOWN_KEY) if !was_read_since => Err(Unverified::UnknownKey),
            checked => Ok(checked?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// The list is the store's, whose metrics show it; the words are written here.
    #[test]
    fn every_reason_is_in_the_closed_list() {
        let sources = [include_str!("claims.rs"), include_str!("mod.rs"), include_str!("token.rs")];
        let words = sources.iter().flat_map(|text| text.split('"'));
        let written: BTreeSet<&str> = words
            .filter(|word| {
                word.strip_prefix("token_").is_some_and(|rest| !rest.is_empty() && !rest.contains(' '))
            })
            .collect();
        let listed = store::TOKEN_REFUSALS.iter().copied().filter(|word| word.starts_with("token_"));
        assert_eq!(written, listed.collect::<BTreeSet<_>>());
    }
}
