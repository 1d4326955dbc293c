//! A token's text taken apart, strictly: three parts, one reading, nothing that asks for something else than a signature.

use data_encoding::BASE64URL_NOPAD;
use domain::limits;
use serde_json::{Map, Value};

use super::Refusal;
use super::config::TokenAlgorithm;
use super::key::Key;
use crate::json;

/// A token that nobody has vouched for yet.
#[derive(Debug)]
pub(crate) struct Token<'a> {
    algorithm: TokenAlgorithm,
    kid: Option<String>,
    pub(crate) claims: Map<String, Value>,
    signed: &'a str,
    signature: Vec<u8>,
}

/// Header fields that name a key by themselves, or change what is signed. None is followed.
const FORBIDDEN: [&str; 9] = ["jku", "x5u", "jwk", "x5c", "crit", "b64", "zip", "enc", "epk"];
/// Kinds of tokens that are meant for a service like this.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];
const KID_BYTES: usize = 256;
/// Keys of one name and algorithm that are tried.
const TRIED: usize = 4;

impl<'a> Token<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, Refusal> {
        if text.len() > limits::TOKEN_BYTES {
            return Err("token_too_large");
        }
        let (signed, signature) = text.rsplit_once('.').ok_or("token_form")?;
        let (header, claims) = signed.split_once('.').ok_or("token_form")?;
        if claims.contains('.') {
            return Err("token_form");
        }
        let header = object(header)?;
        let claims = object(claims)?;
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes()).map_err(|_| "token_form")?;
        if FORBIDDEN.iter().any(|field| header.contains_key(*field)) {
            return Err("token_header");
        }
        let kind = match header.get("typ") {
            None => true,
            Some(Value::String(kind)) => TYPES.contains(&kind.to_ascii_lowercase().as_str()),
            Some(_) => false,
        };
        let kid = match header.get("kid") {
            None => None,
            Some(Value::String(kid)) if (1..=KID_BYTES).contains(&kid.len()) => Some(kid.clone()),
            Some(_) => return Err("token_header"),
        };
        if !kind {
            return Err("token_header");
        }
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(TokenAlgorithm::named);
        let algorithm = algorithm.ok_or("token_algorithm")?;
        Ok(Self { algorithm, kid, claims, signed, signature })
    }

    /// Who it says it is from; only good for finding the key that has to show it.
    pub(crate) fn issuer(&self) -> Result<&str, Refusal> {
        self.claims.get("iss").and_then(Value::as_str).ok_or("token_issuer")
    }

    /// Whether one of the keys that it may have been signed with did. A token without a `kid` needs a key that is the only one of its
    /// algorithm.
    pub(crate) fn check_signature(&self, keys: &[Key]) -> Result<(), Refusal> {
        let same = keys.iter().filter(|key| key.algorithm == self.algorithm);
        let candidates: Vec<_> = match &self.kid {
            Some(kid) => same.filter(|key| key.kid.as_ref() == Some(kid)).collect(),
            None => same.collect(),
        };
        if candidates.is_empty() || (self.kid.is_none() && candidates.len() > 1) {
            return Err(super::UNKNOWN_KEY);
        }
        let made = |key: &&Key| key.made(self.signed.as_bytes(), &self.signature);
        if candidates.iter().take(TRIED).any(made) { Ok(()) } else { Err("token_signature") }
    }
}

fn object(part: &str) -> Result<Map<String, Value>, Refusal> {
    let text = BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| "token_form")?;
    match json::parse(&text) {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => Err("token_form"),
    }
}
