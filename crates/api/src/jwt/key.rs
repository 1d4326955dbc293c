//! One key with the one algorithm that it is good for.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{DecodingKey, DecodingKeyKind};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};

use super::config::{IssuerConfig, IssuerError, IssuerKey, KeyMaterial, TokenAlgorithm};

/// A key.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) kid: Option<String>,
    pub(crate) algorithm: TokenAlgorithm,
    decoding: DecodingKey,
}

/// Shortest modulus of RSA, in bytes.
const RSA_BYTES: usize = 256;

impl Key {
    /// One that the operator gave.
    pub(crate) fn given(issuer: &IssuerConfig, given: &IssuerKey) -> Result<Self, IssuerError> {
        let decoding = match (&given.material, given.algorithm) {
            (KeyMaterial::Secret(secret), _) => Ok(DecodingKey::from_secret(secret)),
            (KeyMaterial::Pem(pem), TokenAlgorithm::Rs256) => DecodingKey::from_rsa_pem(pem.as_bytes()),
            (KeyMaterial::Pem(pem), TokenAlgorithm::Es256) => DecodingKey::from_ec_pem(pem.as_bytes()),
            (KeyMaterial::Pem(pem), _) => DecodingKey::from_ed_pem(pem.as_bytes()),
        };
        let decoding = decoding
            .map_err(|_| issuer.error(format!("has a PEM that is no {} key", given.algorithm.as_str())))?;
        let length = decoding.try_get_as_bytes().map_or(0, <[u8]>::len);
        let fits = match given.algorithm {
            TokenAlgorithm::Hs256 => true,
            TokenAlgorithm::Rs256 => length > RSA_BYTES,
            // An uncompressed point.
            TokenAlgorithm::Es256 => length == 65,
            TokenAlgorithm::EdDsa => length == 32,
        };
        if !fits {
            let message =
                format!("has a PEM that is no {} key, or too small a one", given.algorithm.as_str());
            return Err(issuer.error(message));
        }
        Ok(Self { kid: given.kid.clone(), algorithm: given.algorithm, decoding })
    }

    /// One that an issuer publishes; `None` when it is not for us.
    pub(crate) fn published(jwk: &Jwk, algorithms: &[TokenAlgorithm]) -> Option<Self> {
        let common = &jwk.common;
        let signs = common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature);
        let verifies = common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => TokenAlgorithm::Rs256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                TokenAlgorithm::Es256
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                TokenAlgorithm::EdDsa
            }
            // A secret that is published is none.
            _ => return None,
        };
        let agrees = common.key_algorithm.is_none_or(|named| named.to_string() == algorithm.as_str());
        if !(signs && verifies && agrees && algorithms.contains(&algorithm)) {
            return None;
        }
        let decoding = DecodingKey::from_jwk(jwk).ok()?;
        let fits = match decoding.kind() {
            DecodingKeyKind::RsaModulusExponent { n, .. } => without_zeros(n).len() >= RSA_BYTES,
            DecodingKeyKind::SecretOrDer(bytes) => {
                bytes.len() == if algorithm == TokenAlgorithm::Es256 { 65 } else { 32 }
            }
        };
        fits.then(|| Self { kid: common.key_id.clone(), algorithm, decoding })
    }

    /// Whether this key made the signature.
    pub(crate) fn made(&self, message: &[u8], signature: &[u8]) -> bool {
        match (self.algorithm, self.decoding.kind()) {
            (TokenAlgorithm::Hs256, DecodingKeyKind::SecretOrDer(secret)) => {
                hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), message, signature).is_ok()
            }
            (TokenAlgorithm::Rs256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let key = RsaPublicKeyComponents { n: without_zeros(n), e: without_zeros(e) };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok()
            }
            (TokenAlgorithm::Rs256, DecodingKeyKind::SecretOrDer(der)) => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der).verify(message, signature).is_ok()
            }
            (TokenAlgorithm::Es256, DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok()
            }
            (TokenAlgorithm::EdDsa, DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
            }
            (_, DecodingKeyKind::RsaModulusExponent { .. }) => false,
        }
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key")
            .field("kid", &self.kid)
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}
