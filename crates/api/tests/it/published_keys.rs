//! Keys that an issuer publishes: read, kept, changed, and asked for no more often than they may be.

use std::time::Duration;

use serde_json::json;
use store::testing::until;

use crate::app::App;
use crate::client::Client;
use crate::issuer::{Answer, Issuer, KeyServer, claims, hs256, signed};

/// Nobody waits for long for the first look at an issuer's keys.
async fn keys_are_read(client: &Client) {
    let are = async || client.get("/v1/me").await.status == 200;
    until("the keys are read", Duration::from_secs(60), are).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn published_keys_are_kept_while_their_issuer_is_down_and_change_when_it_is_back() {
    let issuer = Issuer::new();
    let server = KeyServer::start(Answer::Keys(issuer.jwks("one"))).await;
    let app = App::with(|config| {
        config.issuers = vec![issuer.published(&server.url, Duration::from_millis(200))];
    })
    .await;
    let (tenant, key) = app.tenant("acme").await;
    let claims = claims(&tenant.to_string(), 600);
    let client = |kid: &str| {
        key.with_key(&signed(&json!({"alg": "RS256", "kid": kid}), &claims, |text| issuer.rs256(text)))
    };
    keys_are_read(&client("one")).await;
    let ec = signed(&json!({"alg": "ES256", "kid": "one-ec"}), &claims, |text| issuer.es256(text));
    key.with_key(&ec).get("/v1/me").await.expect(200);
    // A published secret is none.
    let oct = signed(&json!({"alg": "HS256", "kid": "oct"}), &claims, |text| hs256(&[0, 0, 0], text));
    key.with_key(&oct).get("/v1/me").await.problem(401, "unauthenticated");
    for answer in [
        Answer::Status(500),
        Answer::Status(302),
        Answer::Huge(300 * 1024),
        Answer::Keys(json!({"keys": []})),
        Answer::Keys(json!([1])),
        Answer::Never,
    ] {
        let before = server.asked();
        server.answer(answer);
        let asked = async {
            while server.asked() == before {
                client("two").get("/v1/me").await.problem(401, "unauthenticated");
            }
        };
        tokio::time::timeout(Duration::from_secs(60), asked).await.expect("the issuer is asked again");
        client("one").get("/v1/me").await.expect(200);
    }
    server.answer(Answer::Keys(issuer.jwks("two")));
    let changed = async || client("two").get("/v1/me").await.status == 200;
    until("the new key is taken", Duration::from_secs(60), changed).await;
    client("one").get("/v1/me").await.problem(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_whose_key_may_still_come_is_not_held_against_its_address() {
    let issuer = Issuer::new();
    let server = KeyServer::start(Answer::Status(500)).await;
    let app = App::with(|config| {
        config.issuers = vec![issuer.published(&server.url, Duration::from_millis(200))];
        config.failed_auth_per_minute = 2;
    })
    .await;
    let (tenant, key) = app.tenant("acme").await;
    let claims = claims(&tenant.to_string(), 600);
    let token = |kid: &str| signed(&json!({"alg": "RS256", "kid": kid}), &claims, |text| issuer.rs256(text));
    for _ in 0..5 {
        key.with_key(&token("one")).get("/v1/me").await.problem(503, "issuer_unavailable");
    }
    server.answer(Answer::Keys(issuer.jwks("one")));
    keys_are_read(&key.with_key(&token("one"))).await;
    key.with_key("th_wrong").get("/v1/me").await.problem(401, "unauthenticated");

    // A new key whose issuer was asked a moment ago, or does not answer now.
    for least_interval in [Duration::from_secs(3_600), Duration::from_millis(1)] {
        let server = KeyServer::start(Answer::Keys(issuer.jwks("one"))).await;
        let app = App::with(|config| {
            config.issuers = vec![issuer.published(&server.url, least_interval)];
            config.failed_auth_per_minute = 2;
        })
        .await;
        let (tenant, key) = app.tenant("acme").await;
        let claims = self::claims(&tenant.to_string(), 600);
        let token =
            |kid: &str| signed(&json!({"alg": "RS256", "kid": kid}), &claims, |text| issuer.rs256(text));
        keys_are_read(&key.with_key(&token("one"))).await;
        server.answer(Answer::Status(500));
        for _ in 0..5 {
            key.with_key(&token("two")).get("/v1/me").await.problem(401, "unauthenticated");
        }
        // Whoever is wrong in another way is counted.
        let forged = signed(&json!({"alg": "RS256", "kid": "one"}), &claims, |_| vec![0; 256]);
        let statuses = async |text: &str| key.with_key(text).get("/v1/me").await.status;
        assert_eq!((statuses(&forged).await, statuses(&forged).await), (401, 401));
        assert_eq!(statuses(&forged).await, 429);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_key_names_ask_the_issuer_once() {
    let issuer = Issuer::new();
    let server = KeyServer::start(Answer::Keys(issuer.jwks("one"))).await;
    let app = App::with(|config| {
        config.issuers = vec![issuer.published(&server.url, Duration::from_secs(3_600))];
    })
    .await;
    let (tenant, key) = app.tenant("acme").await;
    let claims = claims(&tenant.to_string(), 600);
    let token = |kid: &str| signed(&json!({"alg": "RS256", "kid": kid}), &claims, |text| issuer.rs256(text));
    keys_are_read(&key.with_key(&token("one"))).await;
    for n in 0..40 {
        key.with_key(&token(&format!("made-up-{n}"))).get("/v1/me").await.problem(401, "unauthenticated");
    }
    assert_eq!(server.asked(), 1);
}
