//! Issuers of tokens, as an operator writes them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::{IssuerConfig, IssuerKey, JwksConfig, KeyMaterial, TokenAlgorithm};
use domain::TenantId;
use serde::{Deserialize, Serialize};

use super::Secret;

/// Tokens of issuers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtConfig {
    /// Whose tokens are taken.
    pub issuers: Vec<JwtIssuer>,
}

/// An issuer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtIssuer {
    /// What `iss` has to be.
    pub issuer: String,
    /// `aud` has to name one of these.
    pub audience: Vec<String>,
    /// Keys that are known beforehand.
    #[serde(default)]
    pub keys: Vec<JwtKey>,
    /// Where further keys are published.
    #[serde(default)]
    pub jwks_url: Option<String>,
    /// File with whom to trust at `jwks_url`, in place of those whom the system trusts.
    #[serde(default)]
    pub jwks_ca: Option<PathBuf>,
    /// Algorithms that published keys are used with.
    #[serde(default)]
    pub jwks_algorithms: Vec<JwtAlgorithm>,
    /// How often the published keys are read, in seconds.
    #[serde(default = "jwks_refresh_s")]
    pub jwks_refresh_s: u64,
    /// Least time between two reads, in seconds.
    #[serde(default = "jwks_least_interval_s")]
    pub jwks_least_interval_s: u64,
    /// Tenants that it may speak for; all when empty.
    #[serde(default)]
    pub tenants: Vec<TenantId>,
    /// The claim that has the tenant's id.
    #[serde(default = "tenant_claim")]
    pub tenant_claim: String,
    /// The claim that has scopes.
    #[serde(default = "scope_claim")]
    pub scope_claim: String,
    /// The claim that has a role's name.
    #[serde(default = "role_claim")]
    pub role_claim: String,
    /// By how much clocks may differ, in seconds.
    #[serde(default = "leeway_s")]
    pub leeway_s: u64,
}

/// A key that is known beforehand: a secret, or a public key as text or in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtKey {
    /// What `kid` has to be.
    #[serde(default)]
    pub kid: Option<String>,
    /// The one algorithm that it is used with.
    pub algorithm: JwtAlgorithm,
    /// The secret of HS256, at least 32 bytes.
    #[serde(default)]
    pub secret: Option<Secret>,
    /// The public key of the others.
    #[serde(default)]
    pub pem: Option<String>,
    /// A file with it.
    #[serde(default)]
    pub pem_file: Option<PathBuf>,
}

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256.
    HS256,
    /// RSA PKCS#1 1.5 with SHA-256.
    RS256,
    /// ECDSA on P-256 with SHA-256.
    ES256,
    /// Ed25519.
    EdDSA,
}

impl From<JwtAlgorithm> for TokenAlgorithm {
    fn from(algorithm: JwtAlgorithm) -> Self {
        match algorithm {
            JwtAlgorithm::HS256 => Self::Hs256,
            JwtAlgorithm::RS256 => Self::Rs256,
            JwtAlgorithm::ES256 => Self::Es256,
            JwtAlgorithm::EdDSA => Self::EdDsa,
        }
    }
}

fn jwks_refresh_s() -> u64 {
    300
}

fn jwks_least_interval_s() -> u64 {
    30
}

fn tenant_claim() -> String {
    "tenant_id".to_owned()
}

fn scope_claim() -> String {
    "scope".to_owned()
}

fn role_claim() -> String {
    "role".to_owned()
}

fn leeway_s() -> u64 {
    30
}

impl JwtConfig {
    /// The issuers as the API takes them, with the keys that lie in files.
    ///
    /// # Errors
    /// When a file cannot be read, or a key is none or several.
    pub fn issuers(&self) -> Result<Vec<IssuerConfig>> {
        self.issuers.iter().map(JwtIssuer::read).collect()
    }
}

impl JwtIssuer {
    fn read(&self) -> Result<IssuerConfig> {
        let keys = self.keys.iter().map(JwtKey::read).collect::<Result<_>>();
        let jwks = self.jwks_url.as_ref().map(|url| JwksConfig {
            url: url.clone(),
            ca: self.jwks_ca.clone(),
            algorithms: self.jwks_algorithms.iter().copied().map(Into::into).collect(),
            refresh: Duration::from_secs(self.jwks_refresh_s.max(self.jwks_least_interval_s)),
            least_interval: Duration::from_secs(self.jwks_least_interval_s.max(1)),
        });
        Ok(IssuerConfig {
            issuer: self.issuer.clone(),
            audience: self.audience.clone(),
            keys: keys.with_context(|| format!("a key of the token issuer {:?}", self.issuer))?,
            jwks,
            tenants: self.tenants.clone(),
            tenant_claim: self.tenant_claim.clone(),
            scope_claim: self.scope_claim.clone(),
            role_claim: self.role_claim.clone(),
            leeway: Duration::from_secs(self.leeway_s),
        })
    }
}

impl JwtKey {
    fn read(&self) -> Result<IssuerKey> {
        let material = match (&self.secret, &self.pem, &self.pem_file) {
            (Some(secret), None, None) => KeyMaterial::Secret(secret.expose().as_bytes().to_vec()),
            (None, Some(pem), None) => KeyMaterial::Pem(pem.clone()),
            (None, None, Some(file)) => KeyMaterial::Pem(
                std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?,
            ),
            _ => bail!("give one of secret, pem and pem_file"),
        };
        Ok(IssuerKey { kid: self.kid.clone(), algorithm: self.algorithm.into(), material })
    }
}
