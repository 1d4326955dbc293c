//! An issuer of tokens: it signs whatever a test asks for, and publishes keys as well or as badly as the test says.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::{IssuerConfig, IssuerKey, JwksConfig, KeyMaterial, TokenAlgorithm};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use data_encoding::{BASE64, BASE64URL_NOPAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use ring::{hmac, rsa};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const ISSUER: &str = "https://issuer.example";
pub(crate) const AUDIENCE: &str = "toolhost";
/// The RSA key of these tests; nothing else trusts it.
const RSA_DER: &[u8] = include_bytes!("keys/rsa.der");
pub(crate) const RSA_PEM: &str = include_str!("keys/rsa.pub.pem");

/// Keys of every kind.
pub(crate) struct Issuer {
    rsa: RsaKeyPair,
    ec: EcdsaKeyPair,
    ed: Ed25519KeyPair,
    pub(crate) secret: Vec<u8>,
    random: SystemRandom,
}

impl Issuer {
    pub(crate) fn new() -> Self {
        let random = SystemRandom::new();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let ed = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        Self {
            rsa: RsaKeyPair::from_pkcs8(RSA_DER).expect("a key"),
            ec: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random)
                .expect("a key"),
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).expect("a key"),
            secret: ring::rand::generate::<[u8; 32]>(&random).expect("random").expose().to_vec(),
            random,
        }
    }

    /// What the service is told of it: one key of each kind, named by its kind.
    pub(crate) fn config(&self) -> IssuerConfig {
        let key =
            |kid: &str, algorithm, material| IssuerKey { kid: Some(kid.to_owned()), algorithm, material };
        let pem = |text: String| KeyMaterial::Pem(text);
        IssuerConfig {
            issuer: ISSUER.to_owned(),
            audience: vec![AUDIENCE.to_owned()],
            keys: vec![
                key("hs", TokenAlgorithm::Hs256, KeyMaterial::Secret(self.secret.clone())),
                key("rs", TokenAlgorithm::Rs256, pem(RSA_PEM.to_owned())),
                key("es", TokenAlgorithm::Es256, pem(self.ec_pem())),
                key("ed", TokenAlgorithm::EdDsa, pem(self.ed_pem())),
            ],
            jwks: None,
            tenants: Vec::new(),
            tenant_claim: "tenant_id".to_owned(),
            scope_claim: "scope".to_owned(),
            role_claim: "role".to_owned(),
            leeway: Duration::ZERO,
        }
    }

    /// The same with published keys only.
    pub(crate) fn published(&self, url: &str, least_interval: Duration) -> IssuerConfig {
        let algorithms = vec![TokenAlgorithm::Rs256, TokenAlgorithm::Es256, TokenAlgorithm::EdDsa];
        let refresh = Duration::from_secs(3_600);
        let jwks = JwksConfig { url: url.to_owned(), ca: None, algorithms, refresh, least_interval };
        IssuerConfig { keys: Vec::new(), jwks: Some(jwks), ..self.config() }
    }

    pub(crate) fn ec_pem(&self) -> String {
        const BEFORE: &[u8] = &[
            0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
            0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
        ];
        pem(BEFORE, self.ec.public_key().as_ref())
    }

    fn ed_pem(&self) -> String {
        const BEFORE: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        pem(BEFORE, self.ed.public_key().as_ref())
    }

    /// The public keys as a set, named so.
    pub(crate) fn jwks(&self, kid: &str) -> Value {
        let public: rsa::PublicKeyComponents<Vec<u8>> = self.rsa.public().into();
        let point = &self.ec.public_key().as_ref()[1..];
        let b64 = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        json!({"keys": [
            {"kty": "oct", "kid": "oct", "k": "AAAA"},
            {"kty": "RSA", "kid": kid, "use": "enc", "n": b64(&public.n), "e": b64(&public.e)},
            {"kty": "what?", "kid": kid},
            {"kty": "RSA", "kid": kid, "alg": "RS256", "use": "sig", "n": b64(&public.n), "e": b64(&public.e)},
            {"kty": "EC", "kid": format!("{kid}-ec"), "crv": "P-256", "x": b64(&point[..32]), "y": b64(&point[32..])},
            {"kty": "OKP", "kid": format!("{kid}-ed"), "crv": "Ed25519", "x": b64(self.ed.public_key().as_ref())},
        ]})
    }

    pub(crate) fn rs256(&self, text: &str) -> Vec<u8> {
        let mut signature = vec![0; self.rsa.public().modulus_len()];
        self.rsa.sign(&RSA_PKCS1_SHA256, &self.random, text.as_bytes(), &mut signature).expect("signs");
        signature
    }

    pub(crate) fn es256(&self, text: &str) -> Vec<u8> {
        self.ec.sign(&self.random, text.as_bytes()).expect("signs").as_ref().to_vec()
    }

    pub(crate) fn eddsa(&self, text: &str) -> Vec<u8> {
        self.ed.sign(text.as_bytes()).as_ref().to_vec()
    }

    pub(crate) fn hs256(&self, text: &str) -> Vec<u8> {
        hs256(&self.secret, text)
    }

    /// A token that is right.
    pub(crate) fn token(&self, claims: &Value) -> String {
        signed(&json!({"alg": "RS256", "kid": "rs", "typ": "JWT"}), claims, |text| self.rs256(text))
    }
}

fn pem(before: &[u8], key: &[u8]) -> String {
    let text = BASE64.encode(&[before, key].concat());
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

pub(crate) fn hs256(secret: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), text.as_bytes()).as_ref().to_vec()
}

pub(crate) fn part(value: &Value) -> String {
    BASE64URL_NOPAD.encode(value.to_string().as_bytes())
}

/// A token of these parts, signed by whatever the test likes.
pub(crate) fn signed(header: &Value, claims: &Value, sign: impl Fn(&str) -> Vec<u8>) -> String {
    signed_text(&part(header), &part(claims), sign)
}

pub(crate) fn signed_text(header: &str, claims: &str, sign: impl Fn(&str) -> Vec<u8>) -> String {
    let text = format!("{header}.{claims}");
    let signature = BASE64URL_NOPAD.encode(&sign(&text));
    format!("{text}.{signature}")
}

/// Claims that are right for so many seconds.
pub(crate) fn claims(tenant: &str, seconds: i64) -> Value {
    let now = chrono::Utc::now().timestamp();
    json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "tenant_id": tenant, "iat": now, "exp": now + seconds,
        "scope": "openid sessions:read sessions:write calls:read calls:write operator",
    })
}

/// How a key server behaves.
#[derive(Clone)]
pub(crate) enum Answer {
    Keys(Value),
    Status(u16),
    /// So many bytes of JSON.
    Huge(usize),
    Never,
}

/// A key server.
#[derive(Clone)]
pub(crate) struct KeyServer {
    pub(crate) url: String,
    answer: Arc<Mutex<Answer>>,
    asked: Arc<AtomicUsize>,
}

impl KeyServer {
    pub(crate) async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
        let server = Self { url, answer: Arc::new(Mutex::new(answer)), asked: Arc::default() };
        let router = axum::Router::new().route("/keys", get(answer_keys)).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    pub(crate) fn answer(&self, answer: Answer) {
        *self.answer.lock().expect("unpoisoned") = answer;
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn answer_keys(State(server): State<KeyServer>) -> (StatusCode, String) {
    server.asked.fetch_add(1, Ordering::SeqCst);
    let answer = server.answer.lock().expect("unpoisoned").clone();
    match answer {
        Answer::Keys(keys) => (StatusCode::OK, keys.to_string()),
        Answer::Status(status) => (StatusCode::from_u16(status).expect("a status"), String::new()),
        Answer::Huge(bytes) => {
            (StatusCode::OK, format!("{{\"keys\": [], \"x\": \"{}\"}}", "x".repeat(bytes)))
        }
        Answer::Never => std::future::pending().await,
    }
}
