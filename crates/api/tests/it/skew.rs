//! Tokens of issuers whose clock is not ours: taken within the leeway, and not beyond it.

use std::time::Duration;

use serde_json::json;

use crate::app::App;
use crate::issuer::{Issuer, claims};

const LEEWAY: i64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_may_be_wrong_by_the_leeway_and_no_more() {
    let (lenient, strict) = (Issuer::new(), Issuer::new());
    let app = App::with(|config| {
        let issuer = lenient.config();
        config.issuers = vec![
            api::IssuerConfig { leeway: Duration::from_secs(LEEWAY.unsigned_abs()), ..issuer },
            api::IssuerConfig { issuer: "strict".to_owned(), ..strict.config() },
        ];
    })
    .await;
    let (tenant, key) = app.tenant("acme").await;
    let tenant = tenant.to_string();
    // Time goes on while this runs: where it could change an answer there are 25 s and more for that.
    let cases: &[(&str, &str, i64, bool)] = &[
        ("over, by a clock that is behind ours", "exp", -5, true),
        ("over for longer than the leeway", "exp", -LEEWAY, false),
        ("over for longer than the leeway", "exp", -LEEWAY - 1, false),
        ("over for long", "exp", -3_600, false),
        ("not begun, by a clock that is ahead of ours", "nbf", LEEWAY - 1, true),
        ("not begun for longer than the leeway", "nbf", LEEWAY + 60, false),
        ("made later than now, by a clock that is ahead of ours", "iat", LEEWAY - 1, true),
        ("made later than the leeway", "iat", LEEWAY + 60, false),
    ];
    for (what, claim, seconds, taken) in cases {
        let token = |issuer: &Issuer, name: Option<&str>| {
            let mut claims = claims(&tenant, 600);
            claims[*claim] = json!(chrono::Utc::now().timestamp() + seconds);
            if let Some(name) = name {
                claims["iss"] = json!(name);
            }
            key.with_key(&issuer.token(&claims))
        };
        let reply = token(&lenient, None).get("/v1/me").await;
        if *taken {
            let me = reply.expect(200);
            assert_eq!(me["tenant_id"], tenant, "{what}");
        } else {
            reply.problem(401, "unauthenticated");
        }
        // Without a leeway none of them is.
        token(&strict, Some("strict")).get("/v1/me").await.problem(401, "unauthenticated");
    }
}
