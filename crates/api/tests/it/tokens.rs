//! Tokens of issuers: which open the service, which never do, and what happens when keys change or do not come.

use std::time::Duration;

use data_encoding::{BASE64, BASE64URL_NOPAD};
use domain::TenantStatus;
use serde_json::{Value, json};
use store::testing::until;

use crate::app::App;
use crate::client::Client;
use crate::issuer::{AUDIENCE, ISSUER, Issuer, RSA_PEM, claims, hs256, part, signed, signed_text};

async fn app(issuer: &Issuer) -> App {
    App::with(|config| {
        config.issuers = vec![issuer.config()];
        config.streams.recheck = Duration::from_millis(100);
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_each_algorithm_speaks_for_its_subject() {
    let issuer = Issuer::new();
    let app = app(&issuer).await;
    let (tenant, key) = app.tenant("acme").await;
    let claims = claims(&tenant.to_string(), 600);
    let tokens = [
        signed(&json!({"alg": "HS256", "kid": "hs"}), &claims, |text| issuer.hs256(text)),
        signed(&json!({"alg": "RS256", "kid": "rs", "typ": "at+jwt"}), &claims, |text| issuer.rs256(text)),
        signed(&json!({"alg": "ES256", "kid": "es", "typ": "JWT"}), &claims, |text| issuer.es256(text)),
        signed(&json!({"alg": "EdDSA"}), &claims, |text| issuer.eddsa(text)),
    ];
    for token in tokens {
        let me = key.with_key(&token).get("/v1/me").await.expect(200);
        assert_eq!((&me["tenant_id"], &me["key_id"]), (&json!(tenant.to_string()), &Value::Null));
        assert_eq!((&me["name"], &me["issuer"], &me["role"]), (&json!("ada"), &json!(ISSUER), &Value::Null));
        // What other services call scopes is left out, and nobody becomes an operator by a token.
        let scopes = json!(["sessions:read", "sessions:write", "calls:read", "calls:write"]);
        assert_eq!(me["scopes"], scopes);
        assert!(me["expires_at"].is_string() && me["left"]["sessions"].is_u64(), "{me:#}");
        key.with_key(&token).get("/v1/admin/tenants").await.problem(403, "insufficient_scope");
        key.with_key(&token).get("/v1/audit").await.problem(403, "insufficient_scope");
    }
    let client = key.with_key(&issuer.token(&claims));
    let session = client.session().await;
    client.submit(&session).await;
    let trail = key.get("/v1/audit?action=call.submit").await.expect(200);
    let principal = &trail["data"][0]["principal"];
    assert_eq!((&principal["name"], &principal["issuer"]), (&json!("ada"), &json!(ISSUER)), "{trail:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_and_scopes_of_a_token_only_narrow_each_other() {
    let issuer = Issuer::new();
    let app = app(&issuer).await;
    let (tenant, key) = app.tenant("acme").await;
    let with = |changes: Value| {
        let mut claims = claims(&tenant.to_string(), 600);
        for (name, value) in changes.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        key.with_key(&issuer.token(&claims))
    };
    let scopes = async |changes: Value| with(changes).get("/v1/me").await.expect(200)["scopes"].clone();
    assert_eq!(scopes(json!({"role": "viewer"})).await, json!(["sessions:read", "calls:read"]));
    assert_eq!(scopes(json!({"role": "nobody"})).await, json!([]));
    assert_eq!(scopes(json!({"scope": ["calls:read", "calls:read"]})).await, json!(["calls:read"]));
    let body = json!({"scopes": ["calls:write", "calls:read"], "policy": {"tools": {"disabled": ["bash"]}}});
    let put = key.request("PUT", "/v1/roles/robot").json(&body);
    key.send(put).await.expect(200);
    assert_eq!(scopes(json!({"role": "robot", "scope": "calls:read"})).await, json!(["calls:read"]));
    let robot = with(json!({"role": "robot", "scope": "calls:read policies:read"}));
    assert_eq!(robot.get("/v1/me").await.expect(200)["role"], "robot");
}

/// Everything that must not open, by what is wrong with it.
fn attacks(issuer: &Issuer, tenant: &str) -> Vec<(&'static str, String)> {
    let good = json!({"alg": "RS256", "kid": "rs", "typ": "JWT"});
    let claims = claims(tenant, 600);
    let now = chrono::Utc::now().timestamp();
    let rs = |text: &str| issuer.rs256(text);
    let none = |_: &str| Vec::new();
    let der = BASE64
        .decode(RSA_PEM.lines().filter(|line| !line.starts_with('-')).collect::<String>().as_bytes())
        .expect("a PEM");
    let mut all: Vec<(&'static str, String)> = Vec::new();

    // The header's algorithm.
    for alg in
        ["none", "None", "NONE", "nOnE", "", "rs256", "RS384", "RS512", "PS256", "HS384", "ES384", "ES256K"]
    {
        all.push((
            "an algorithm that is none of the key's",
            signed(&json!({"alg": alg, "kid": "rs"}), &claims, rs),
        ));
        all.push(("the same without a signature", signed(&json!({"alg": alg, "kid": "rs"}), &claims, none)));
    }
    for alg in [json!(null), json!(1), json!(["RS256"]), json!({"RS256": 1})] {
        all.push(("an algorithm that is no text", signed(&json!({"alg": alg, "kid": "rs"}), &claims, rs)));
    }
    all.push(("no algorithm", signed(&json!({"kid": "rs"}), &claims, rs)));
    for secret in [RSA_PEM.as_bytes(), RSA_PEM.trim_end().as_bytes(), &der, issuer.ec_pem().as_bytes(), b""] {
        for kid in ["rs", "es", "ed", "hs"] {
            let header = json!({"alg": "HS256", "kid": kid});
            all.push(("a public key as a secret", signed(&header, &claims, |text| hs256(secret, text))));
        }
    }
    all.push((
        "another key's algorithm",
        signed(&json!({"alg": "ES256", "kid": "rs"}), &claims, |t| issuer.es256(t)),
    ));
    all.push(("another key's name", signed(&json!({"alg": "RS256", "kid": "es"}), &claims, rs)));

    // The header's key.
    for kid in [
        "../../../../dev/null",
        "/dev/null",
        "' OR 1=1 --",
        "rs' UNION SELECT 'x",
        "http://127.0.0.1/k",
        "RS",
        "rs ",
    ] {
        let header = json!({"alg": "HS256", "kid": kid});
        all.push((
            "a name that means something elsewhere",
            signed(&header, &claims, |text| hs256(b"", text)),
        ));
        all.push(("a name that is not there", signed(&json!({"alg": "RS256", "kid": kid}), &claims, rs)));
    }
    for kid in [json!(null), json!(1), json!(""), json!(["rs"]), json!("x".repeat(300)), json!("r\u{0}s")] {
        all.push(("a name that is none", signed(&json!({"alg": "RS256", "kid": kid}), &claims, rs)));
    }
    let stranger = Issuer::new();
    let own = &stranger.jwks("rs")["keys"][4];
    for (field, value) in [
        ("jwk", own.clone()),
        ("jku", json!("https://evil.example/keys")),
        ("x5u", json!("https://evil.example/cert")),
        ("x5c", json!(["AAAA"])),
        ("crit", json!(["exp"])),
        ("b64", json!(false)),
        ("zip", json!("DEF")),
        ("enc", json!("A256GCM")),
    ] {
        let mut header = json!({"alg": "ES256", "kid": "es"});
        header[field] = value;
        all.push(("a key that the token brings", signed(&header, &claims, |text| stranger.es256(text))));
        all.push(("a header that is not followed", signed(&header, &claims, |text| issuer.es256(text))));
    }
    for kind in [json!("logout+jwt"), json!("dpop+jwt"), json!(1), json!("")] {
        all.push((
            "another kind of token",
            signed(&json!({"alg": "RS256", "kid": "rs", "typ": kind}), &claims, rs),
        ));
    }

    // The claims.
    for (name, values) in [
        (
            "exp",
            vec![
                json!(null),
                json!((now + 600).to_string()),
                json!(true),
                json!([now + 600]),
                json!(-1),
                json!(0),
                json!(now - 1),
                json!(1e300),
                json!({"at": now}),
            ],
        ),
        ("nbf", vec![json!(now + 300), json!("0"), json!(null), json!([0]), json!(1e300), json!(-1)]),
        ("iat", vec![json!(now + 300), json!("0"), json!(false)]),
        (
            "aud",
            vec![
                json!(null),
                json!(""),
                json!("toolhos"),
                json!("toolhost "),
                json!("Toolhost"),
                json!([]),
                json!(["other"]),
                json!([AUDIENCE, 1]),
                json!({"toolhost": 1}),
                json!(1),
            ],
        ),
        (
            "iss",
            vec![
                json!(null),
                json!(""),
                json!(format!("{ISSUER}/")),
                json!("https://ISSUER.example"),
                json!([ISSUER]),
                json!("https://evil.example"),
                json!(1),
            ],
        ),
        (
            "sub",
            vec![json!(null), json!(""), json!(1), json!(["ada"]), json!("a\nb"), json!("x".repeat(300))],
        ),
        (
            "tenant_id",
            vec![
                json!(null),
                json!(""),
                json!("acme"),
                json!(1),
                json!([tenant]),
                json!("ten_1"),
                json!("ten_06b2m8j0v5x3t9q7k1h4c8n2r8"),
            ],
        ),
        ("scope", vec![json!(1), json!({"calls:read": true}), json!([1]), json!(null)]),
        ("role", vec![json!(1), json!(["admin"]), json!(""), json!("x".repeat(51)), json!(null)]),
    ] {
        for value in values {
            let mut claims = claims.clone();
            claims[name] = value;
            all.push(("a claim that is none", signed(&good, &claims, rs)));
        }
    }
    for name in ["exp", "aud", "iss", "sub", "tenant_id"] {
        let mut claims = claims.clone();
        claims.as_object_mut().expect("an object").remove(name);
        all.push(("a claim that is missing", signed(&good, &claims, rs)));
    }

    // The text.
    let token = issuer.token(&claims);
    let (text, signature) = token.rsplit_once('.').expect("a signature");
    let other = issuer.token(&json!({"iss": ISSUER}));
    let flipped = if signature.starts_with('A') {
        signature.replacen('A', "B", 1)
    } else {
        format!("A{}", &signature[1..])
    };
    all.extend([
        ("no signature", format!("{text}.")),
        ("two parts", text.to_owned()),
        ("four parts", format!("{token}.x")),
        ("five parts", format!("{token}.x.y")),
        ("dots", "..".to_owned()),
        ("an empty header", format!(".{}", token.split_once('.').expect("parts").1)),
        ("half a signature", format!("{text}.{}", &signature[..signature.len() / 2])),
        ("a signature and more", format!("{token}AAAA")),
        ("another signature", format!("{text}.{}", other.rsplit_once('.').expect("a signature").1)),
        ("a changed signature", format!("{text}.{flipped}")),
        ("a padded signature", format!("{token}==")),
        ("the other alphabet", format!("{text}.+/{}", &signature[2..])),
        ("a changed text", format!("A{token}")),
        ("too long", signed(&good, &json!({"iss": ISSUER, "x": "x".repeat(10_000)}), rs)),
        ("no JSON", signed_text(&BASE64URL_NOPAD.encode(b"alg: RS256"), &part(&claims), rs)),
        ("a list", signed(&json!([good]), &json!([claims]), rs)),
        ("a text", signed(&good, &json!("ada"), rs)),
        (
            "deep",
            signed_text(
                &part(&good),
                &BASE64URL_NOPAD.encode(("[".repeat(200) + &"]".repeat(200)).as_bytes()),
                rs,
            ),
        ),
    ]);
    let twice = |value: &Value, more: &str| {
        BASE64URL_NOPAD.encode(value.to_string().replacen('{', &format!("{{{more},"), 1).as_bytes())
    };
    all.push(("alg twice", signed_text(&twice(&good, "\"alg\":\"none\""), &part(&claims), rs)));
    all.push(("sub twice", signed_text(&part(&good), &twice(&claims, "\"sub\":\"eve\""), rs)));
    all.push(("exp twice", signed_text(&part(&good), &twice(&claims, "\"exp\":1"), rs)));
    let bytes = |text: &str| BASE64URL_NOPAD.encode(text.as_bytes());
    all.push(("a byte order mark", signed_text(&part(&good), &bytes(&format!("\u{feff}{claims}")), rs)));
    all.push(("more behind the JSON", signed_text(&part(&good), &bytes(&format!("{claims}{{}}")), rs)));
    for zero in [0, 1, 32, 63, 65] {
        let es = json!({"alg": "ES256", "kid": "es"});
        all.push(("a signature of nothing", signed(&es, &claims, |_| vec![0; zero])));
    }
    all.push((
        "a zero signature of the right length",
        signed(&json!({"alg": "ES256", "kid": "es"}), &claims, |_| vec![0; 64]),
    ));
    all.push((
        "a zero signature of Ed25519",
        signed(&json!({"alg": "EdDSA", "kid": "ed"}), &claims, |_| vec![0; 64]),
    ));
    all.push((
        "somebody else's key of the same name",
        signed(&json!({"alg": "ES256", "kid": "es"}), &claims, |t| stranger.es256(t)),
    ));
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attack_is_the_same_401() {
    let issuer = Issuer::new();
    let app = app(&issuer).await;
    let (tenant, key) = app.tenant("acme").await;
    key.with_key(&issuer.token(&claims(&tenant.to_string(), 600))).get("/v1/me").await.expect(200);
    let attacks = attacks(&issuer, &tenant.to_string());
    assert!(attacks.len() >= 150, "{}", attacks.len());
    let mut first: Option<Value> = None;
    for (name, token) in attacks {
        let reply = key.with_key(&token).get("/v1/me").await;
        assert_eq!(reply.status, 401, "{name}: {token}");
        assert!(reply.header("www-authenticate").starts_with("Bearer"), "{name}");
        let mut problem = reply.problem(401, "unauthenticated");
        problem["request_id"].take();
        assert_eq!(first.get_or_insert_with(|| problem.clone()), &problem, "{name}: the answer says nothing");
    }
    // So long that it is not even read to its end.
    let status = key.with_key(&format!("a.{}.b", "x".repeat(1 << 20))).get("/v1/me").await.status;
    assert!(matches!(status, 400 | 401 | 431), "{status}");
    // A token in the query is none.
    let token = issuer.token(&claims(&tenant.to_string(), 600));
    for name in ["token", "access_token", "key"] {
        key.with_key("").get(&format!("/v1/me?{name}={token}")).await.problem(401, "unauthenticated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_speaks_for_its_own_tenants_only() {
    let issuer = Issuer::new();
    let app = App::start().await;
    let ((ours, key), (theirs, _)) = (app.tenant("ours").await, app.tenant("theirs").await);
    let again = App::on(app.database, |config| {
        let mut narrow = issuer.config();
        narrow.tenants = vec![ours];
        config.issuers = vec![narrow];
    })
    .await;
    let client = Client::new(&again.base, &key.key);
    let mut without = claims("", 600);
    without.as_object_mut().expect("an object").remove("tenant_id");
    for claims in [claims(&ours.to_string(), 600), without] {
        let me = client.with_key(&issuer.token(&claims)).get("/v1/me").await.expect(200);
        assert_eq!(me["tenant_id"], ours.to_string());
    }
    client
        .with_key(&issuer.token(&claims(&theirs.to_string(), 600)))
        .get("/v1/me")
        .await
        .problem(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_and_suspension_end_what_a_token_has_open() {
    let issuer = Issuer::new();
    let app = app(&issuer).await;
    let (tenant, key) = app.tenant("acme").await;
    let session = key.session().await;
    let call = key.submit(&session).await;
    let path = format!("/v1/calls/{call}/events");
    let brief = key.with_key(&issuer.token(&claims(&tenant.to_string(), 10)));
    let created =
        brief.post(&format!("/v1/calls/{call}/stream_url"), &json!({"expires_in_s": 600})).await.expect(201);
    let by_url = key.with_key("").stream(created["url"].as_str().expect("a URL"), &[]).await;
    assert_eq!(by_url.response_status, 200);
    let by_token = brief.stream(&path, &[]).await;
    assert_eq!(by_token.response_status, 200);
    by_token.rest().await;
    by_url.rest().await;
    brief.get("/v1/me").await.problem(401, "unauthenticated");

    let long = key.with_key(&issuer.token(&claims(&tenant.to_string(), 600)));
    let stream = long.stream(&path, &[]).await;
    assert_eq!(stream.response_status, 200);
    app.store.set_tenant_status(&app.operator, tenant, TenantStatus::Suspended).await.expect("suspends");
    stream.rest().await;
    let refused = async || long.get("/v1/me").await.status == 403;
    until("it is refused", Duration::from_secs(30), refused).await;
    long.get("/v1/me").await.problem(403, "tenant_suspended");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_a_good_signature_is_not_throttled_for_an_address_s_guesses() {
    let issuer = Issuer::new();
    let app = App::with(|config| {
        config.issuers = vec![issuer.config()];
        config.failed_auth_per_minute = 2;
    })
    .await;
    let (tenant, key) = app.tenant("acme").await;
    let call = key.submit(&key.session().await).await;
    let claims = claims(&tenant.to_string(), 600);
    let forged = signed(&json!({"alg": "RS256", "kid": "rs"}), &claims, |_| vec![0; 256]);
    let stolen = app.key(tenant, domain::Scope::tenant_default()).await;
    let path = format!("/v1/calls/{call}/stream_url");
    let url = async |by: &Client| {
        let created = by.post(&path, &json!({"expires_in_s": 600})).await.expect(201);
        created["url"].as_str().expect("a URL").to_owned()
    };
    let (good, revoked) = (url(&key).await, url(&stolen.1).await);
    app.store.revoke_key(&app.operator, stolen.0).await.expect("revokes");
    let status = async |text: &str| key.with_key(text).get("/v1/me").await.status;
    while status(&forged).await != 429 {}
    assert_eq!(status("th_wrong").await, 429);
    assert_eq!(status(&issuer.token(&claims)).await, 200, "a token that nobody has shown before");
    let opened = async |url: &str| key.with_key("").stream(url, &[]).await.response_status;
    assert_eq!(opened(&good).await, 200);
    assert_eq!((opened(&revoked).await, opened(&revoked).await), (401, 429), "its signature is good once");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_cannot_be_trusted_keeps_the_service_from_starting() {
    use api::{IssuerConfig, IssuerKey, JwksConfig, KeyMaterial, TokenAlgorithm};
    let issuer = Issuer::new();
    let key = |algorithm, material| IssuerKey { kid: None, algorithm, material };
    let jwks = |url: &str, algorithms: Vec<TokenAlgorithm>| {
        let (refresh, least_interval) = (Duration::from_secs(300), Duration::from_secs(30));
        Some(JwksConfig { url: url.to_owned(), ca: None, algorithms, refresh, least_interval })
    };
    let with_key = |key| IssuerConfig { keys: vec![key], ..issuer.config() };
    let rs = || vec![TokenAlgorithm::Rs256];
    let wrong = [
        IssuerConfig { audience: Vec::new(), ..issuer.config() },
        IssuerConfig { keys: Vec::new(), ..issuer.config() },
        IssuerConfig { leeway: Duration::from_secs(301), ..issuer.config() },
        with_key(key(TokenAlgorithm::Hs256, KeyMaterial::Secret(vec![1; 31]))),
        with_key(key(TokenAlgorithm::Rs256, KeyMaterial::Secret(vec![1; 64]))),
        with_key(key(TokenAlgorithm::Hs256, KeyMaterial::Pem(RSA_PEM.to_owned()))),
        with_key(key(TokenAlgorithm::Es256, KeyMaterial::Pem(RSA_PEM.to_owned()))),
        with_key(key(TokenAlgorithm::Rs256, KeyMaterial::Pem(issuer.ec_pem()))),
        with_key(key(TokenAlgorithm::Rs256, KeyMaterial::Pem(RSA_PEM.replace("PUBLIC", "PRIVATE")))),
        with_key(key(TokenAlgorithm::Rs256, KeyMaterial::Pem("nonsense".to_owned()))),
        IssuerConfig { jwks: jwks("http://keys.example/x", rs()), ..issuer.config() },
        IssuerConfig { jwks: jwks("file:///etc/passwd", rs()), ..issuer.config() },
        IssuerConfig { jwks: jwks("https://keys.example/x", Vec::new()), ..issuer.config() },
        IssuerConfig { jwks: jwks("https://keys.example/x", vec![TokenAlgorithm::Hs256]), ..issuer.config() },
    ];
    let database = store::testing::TestDatabase::new().await.expect("a database");
    for (n, config) in wrong.into_iter().enumerate() {
        assert!(App::refused(&database, |api| api.issuers = vec![config]).await, "{n}");
    }
    assert!(App::refused(&database, |api| api.issuers = vec![issuer.config(), issuer.config()]).await);
    assert!(!App::refused(&database, |api| api.issuers = vec![issuer.config()]).await);
}
