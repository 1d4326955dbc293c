//! Which issuers an installation trusts, with which keys, and how their claims are read.

use std::path::PathBuf;
use std::time::Duration;

use domain::TenantId;

use crate::outgoing::{Endpoint, Plain};

/// An issuer whose tokens are taken.
#[derive(Clone)]
pub struct IssuerConfig {
    /// What `iss` has to be.
    pub issuer: String,
    /// `aud` has to name one of these.
    pub audience: Vec<String>,
    /// Keys that are known beforehand.
    pub keys: Vec<IssuerKey>,
    /// Where further keys are published.
    pub jwks: Option<JwksConfig>,
    /// Tenants that it may speak for; all when empty. When there is one, tokens need not name it.
    pub tenants: Vec<TenantId>,
    /// Name of the claim that has the tenant's id.
    pub tenant_claim: String,
    /// Name of the claim that has scopes: words with spaces between them, or a list.
    pub scope_claim: String,
    /// Name of the claim that has a role's name.
    pub role_claim: String,
    /// By how much clocks may differ.
    pub leeway: Duration,
}

/// A key that is known beforehand.
#[derive(Clone)]
pub struct IssuerKey {
    /// What `kid` has to be; a key without one is for tokens without one.
    pub kid: Option<String>,
    /// The one algorithm that it is used with.
    pub algorithm: TokenAlgorithm,
    /// The key.
    pub material: KeyMaterial,
}

/// A key as the operator gives it.
#[derive(Clone)]
pub enum KeyMaterial {
    /// A shared secret, for HS256.
    Secret(Vec<u8>),
    /// A public key in PEM, for the others.
    Pem(String),
}

/// Where an issuer publishes its keys.
#[derive(Debug, Clone)]
pub struct JwksConfig {
    /// `https://…`, or `http://` on this machine.
    pub url: String,
    /// File with whom to trust there (PEM), in place of those whom the system trusts.
    pub ca: Option<PathBuf>,
    /// Algorithms that its keys are used with: at most one for each type of key, never HS256.
    pub algorithms: Vec<TokenAlgorithm>,
    /// How often it is read.
    pub refresh: Duration,
    /// Least time between two reads, whatever tokens ask for.
    pub least_interval: Duration,
}

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenAlgorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// RSA PKCS#1 1.5 with SHA-256, keys of 2,048 bits and more.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

/// An issuer that cannot be trusted as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("the token issuer {issuer:?} {message}")]
pub struct IssuerError {
    issuer: String,
    message: String,
}

/// Shortest secret of HS256: as long as its hash (RFC 7518, 3.2).
const SECRET_BYTES: usize = 32;
/// Longest leeway. Beyond it, expiry means little.
const LEEWAY: Duration = Duration::from_secs(300);

impl TokenAlgorithm {
    /// Its name in a header.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Hs256, Self::Rs256, Self::Es256, Self::EdDsa].into_iter().find(|alg| alg.as_str() == name)
    }
}

impl IssuerConfig {
    pub(crate) fn error(&self, message: impl Into<String>) -> IssuerError {
        IssuerError { issuer: self.issuer.clone(), message: message.into() }
    }

    pub(crate) fn check(&self) -> Result<(), IssuerError> {
        if self.issuer.is_empty() {
            return Err(self.error("has no name"));
        }
        if self.audience.is_empty() || self.audience.iter().any(String::is_empty) {
            return Err(self.error("needs an audience: what `aud` of its tokens names for this installation"));
        }
        if self.keys.is_empty() && self.jwks.is_none() {
            return Err(self.error("has neither keys nor a JWKS"));
        }
        if self.leeway > LEEWAY {
            return Err(self.error(format!("has a leeway of more than {} s", LEEWAY.as_secs())));
        }
        for key in &self.keys {
            match (&key.material, key.algorithm) {
                (KeyMaterial::Secret(secret), TokenAlgorithm::Hs256) if secret.len() < SECRET_BYTES => {
                    return Err(self.error(format!("has a secret of less than {SECRET_BYTES} bytes")));
                }
                (KeyMaterial::Secret(_), TokenAlgorithm::Hs256) => {}
                (KeyMaterial::Pem(pem), _) if pem.contains("PRIVATE KEY") => {
                    return Err(self.error("has a private key where its public one belongs"));
                }
                (KeyMaterial::Pem(_), alg) if alg != TokenAlgorithm::Hs256 => {}
                _ => return Err(self.error("has a secret without HS256, or a PEM with it")),
            }
        }
        self.jwks.as_ref().map_or(Ok(()), |jwks| self.check_jwks(jwks))
    }

    fn check_jwks(&self, jwks: &JwksConfig) -> Result<(), IssuerError> {
        jwks.endpoint(self)?;
        if jwks.algorithms.is_empty() || jwks.algorithms.contains(&TokenAlgorithm::Hs256) {
            return Err(self.error("needs jwks_algorithms, of RS256, ES256 and EdDSA"));
        }
        Ok(())
    }
}

impl JwksConfig {
    /// Where it is got.
    pub(crate) fn endpoint(&self, issuer: &IssuerConfig) -> Result<Endpoint, IssuerError> {
        Endpoint::parse(&self.url, Plain::Here, self.ca.as_deref())
            .map_err(|error| issuer.error(format!("has a JWKS {error}")))
    }
}

impl std::fmt::Debug for IssuerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuerConfig").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}
