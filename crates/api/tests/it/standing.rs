//! What goes on longer than a moment ends with the credential that began it: however slowly a client reads, or sends.

use std::time::Duration;

use api::IssuerConfig;
use domain::limits::SEARCHES_PER_TENANT;
use domain::{Scope, TenantId, TenantStatus};
use serde_json::{Value, json};
use store::NewKey;
use store::testing::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::app::App;
use crate::client::Client;
use crate::issuer::{Issuer, claims};

/// More than the sockets between the two hold.
const ROWS: usize = 20_000;

const RECHECK: Duration = Duration::from_millis(100);

async fn app() -> App {
    app_of(Vec::new()).await
}

async fn app_of(issuers: Vec<IssuerConfig>) -> App {
    App::with(|config| {
        config.issuers = issuers;
        config.streams.recheck = RECHECK;
        // Nothing else ends them while a test runs.
        config.streams.stall = Duration::from_secs(3_600);
        config.streams.buffer_bytes = 64 * 1024;
        config.body_timeout = Duration::from_secs(3_600);
    })
    .await
}

/// A connection that takes little at a time, with this request on it.
async fn ask(client: &Client, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 * 1024).expect("a small buffer");
    let address = client.base.strip_prefix("http://").expect("http").parse().expect("an address");
    let mut socket = socket.connect(address).await.expect("connects");
    let (line, rest) = request.split_once("\r\n").expect("a request");
    let head = format!("{line}\r\nHost: x\r\nAuthorization: Bearer {}\r\n{rest}", client.key);
    socket.write_all(head.as_bytes()).await.expect("writes");
    socket
}

/// A request that was let in, and whose body is held back.
struct Held {
    socket: TcpStream,
    rest: String,
}

impl Held {
    async fn ask(client: &Client, path: &str, body: &Value) -> Self {
        let body = body.to_string();
        let (first, rest) = body.split_at(10);
        let head = format!(
            "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut socket = ask(client, &head).await;
        // It is let in, and its body is asked for.
        let mut asked = [0; 25];
        socket.read_exact(&mut asked).await.expect("is let in");
        assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        socket.write_all(first.as_bytes()).await.expect("writes");
        Self { socket, rest: rest.to_owned() }
    }

    /// It is answered so without its body, which comes too late.
    async fn ends_with(mut self, status: &str) {
        let mut answer = vec![0; status.len()];
        let read = timeout(Duration::from_secs(60), self.socket.read_exact(&mut answer)).await;
        read.expect("is answered").expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), status);
        let _ = self.socket.write_all(self.rest.as_bytes()).await;
    }

    /// Its body comes, and so it is answered.
    async fn goes_on(mut self, status: &str) {
        self.socket.write_all(self.rest.as_bytes()).await.expect("writes");
        let mut answer = vec![0; status.len()];
        let read = timeout(Duration::from_secs(60), self.socket.read_exact(&mut answer)).await;
        read.expect("is answered").expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), status);
    }
}

/// Whatever goes on has been judged meanwhile: as have requests that began after it, each with a key that was revoked.
async fn judged_anew(app: &App, tenant: TenantId) {
    for _ in 0..3 {
        let (key, client) = app.key(tenant, Scope::tenant_default()).await;
        let witness = Held::ask(&client, "/v1/sessions", &json!({"metadata": {"is": "a witness"}})).await;
        app.store.revoke_key(&app.operator, key).await.expect("revokes");
        witness.ends_with("HTTP/1.1 401").await;
    }
}

fn connections(app: &App) -> f64 {
    app.metric("toolhost_http_connections")
}

/// Waits until no more connections are open than this.
async fn closed(app: &App, others: f64) {
    until("its connection is closed", Duration::from_secs(60), async || connections(app) <= others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_takes_nothing_or_little_does_not_outlive_its_key() {
    let app = app().await;
    let (tenant, ours) = app.tenant("acme").await;
    let (key, client) = app.key(tenant, Scope::tenant_default()).await;
    let mut running = app.running(&ours).await;
    let piece = vec![b'x'; 60_000];
    for _ in 0..40 {
        running.write(&[&piece, &piece, &piece, &piece]).await;
    }
    let others = connections(&app);
    let request =
        format!("GET /v1/calls/{}/events HTTP/1.1\r\nAccept: text/event-stream\r\n\r\n", running.id());
    let mut never = ask(&client, &request).await;
    let mut slowly = ask(&client, &request).await;
    let mut some = [0; 1_024];
    slowly.read_exact(&mut some).await.expect("has begun");
    never.read_exact(&mut some).await.expect("has begun");
    let reader = tokio::spawn(async move {
        let mut taken = 0;
        while let Ok(read @ 1..) = slowly.read(&mut some).await {
            taken += read;
            // A reader who is slow for as long as it is let.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        taken
    });
    app.store.revoke_key(&app.operator, key).await.expect("revokes");
    closed(&app, others).await;
    assert_eq!(app.metric("toolhost_sse_streams"), 0.0);
    let taken = timeout(Duration::from_secs(600), reader).await.expect("ends").expect("joins");
    assert!(taken < 160 * piece.len(), "{taken} bytes, and not the rest");
    let mut rest = Vec::new();
    let _ = never.read_to_end(&mut rest).await;
    assert!(rest.len() < 160 * piece.len(), "{} bytes, and not the rest", rest.len());
}

/// Trails that fill what lies between a reader who takes nothing and the process.
async fn with_long_trails(app: &App) {
    app.database
        .execute(
            "INSERT INTO audit_log (tenant_id, principal, action, target, allowed)
             SELECT t.id, (SELECT principal FROM audit_log LIMIT 1), 'test.row', repeat('x', 1000), true
             FROM tenants t, generate_series(1, 20000)",
        )
        .await
        .expect("rows");
}

/// A trail that is read whole: its first bytes have come.
async fn export(client: &Client, status: &str) -> TcpStream {
    let mut export = ask(client, "GET /v1/audit HTTP/1.1\r\nAccept: application/x-ndjson\r\n\r\n").await;
    let mut head = vec![0; status.len()];
    export.read_exact(&mut head).await.expect("has begun");
    assert_eq!(String::from_utf8_lossy(&head), status);
    export
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_searches_so_often_at_a_time_and_leaves_room_for_others() {
    let app = app().await;
    let ((_, ours), (_, theirs)) = (app.tenant("acme").await, app.tenant("other").await);
    with_long_trails(&app).await;
    let running = app.running(&ours).await;
    let search = format!("/v1/calls/{}/output?grep=x", running.id());
    let mut held = Vec::new();
    for _ in 0..SEARCHES_PER_TENANT {
        held.push(export(&ours, "HTTP/1.1 200").await);
    }
    export(&ours, "HTTP/1.1 429").await;
    let refused = ours.get(&search).await.problem(429, "quota_exceeded");
    assert_eq!(refused["quota"], "searches", "{refused:#}");
    export(&theirs, "HTTP/1.1 200").await;
    ours.get("/v1/audit").await.expect(200);
    drop(held);
    until("they are given back", Duration::from_secs(60), async || ours.get(&search).await.status == 200)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_ends_with_its_key_or_its_tenant() {
    let app = app().await;
    let (tenant, ours) = app.tenant("acme").await;
    with_long_trails(&app).await;
    let (key, client) = app.key(tenant, Scope::tenant_default()).await;
    for client in [&client, &ours] {
        let others = connections(&app);
        let mut export = export(client, "HTTP/1.1 200").await;
        if client.key == ours.key {
            app.store
                .set_tenant_status(&app.operator, tenant, TenantStatus::Suspended)
                .await
                .expect("suspends");
        } else {
            app.store.revoke_key(&app.operator, key).await.expect("revokes");
        }
        closed(&app, others).await;
        let mut rest = Vec::new();
        let _ = export.read_to_end(&mut rest).await;
        assert!(rest.len() < ROWS * 1_000 && !rest.ends_with(b"0\r\n\r\n"), "{} bytes", rest.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_held_back_is_not_finished_by_a_revoked_key() {
    let app = app().await;
    let (tenant, ours) = app.tenant("acme").await;
    let (key, client) = app.key(tenant, Scope::tenant_default()).await;
    let body = json!({"name": "kept for later", "role": "admin"});
    let held = Held::ask(&client, "/v1/keys", &body).await;
    app.store.revoke_key(&app.operator, key).await.expect("revokes");
    held.ends_with("HTTP/1.1 401").await;
    let keys = ours.get("/v1/keys").await.expect(200);
    assert!(!keys.to_string().contains("kept for later"), "{keys:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_expires_lets_its_requests_come_to_their_end_unless_it_is_revoked_then() {
    let app = app().await;
    let (tenant, ours) = app.tenant("acme").await;
    let new = NewKey { name: "brief".to_owned(), scopes: Scope::tenant_default(), ..NewKey::default() };
    let (key, plain) = app.store.create_key(&app.operator, tenant, new).await.expect("a key");
    let client = Client::new(&app.base, plain.reveal());
    let (above, plain) = app.store.create_operator_key(&app.operator, "brief", None).await.expect("a key");
    let operator = Client::new(&app.base, plain.reveal());
    let goes_on = Held::ask(&client, "/v1/sessions", &json!({"metadata": {"its": "end"}})).await;
    let body = json!({"name": "too late"});
    let late =
        [Held::ask(&client, "/v1/keys", &body).await, Held::ask(&operator, "/v1/admin/tenants", &body).await];
    app.database
        .execute("UPDATE api_keys SET expires_at = clock_timestamp() WHERE name = 'brief'")
        .await
        .expect("expires");
    for client in [&client, &operator] {
        let is_over = async || client.get("/v1/me").await.status == 401;
        until("its time is over", Duration::from_secs(30), is_over).await;
    }
    judged_anew(&app, tenant).await;
    goes_on.goes_on("HTTP/1.1 201").await;
    for id in [key.id, above.id] {
        app.store.revoke_key(&app.operator, id).await.expect("revokes");
    }
    for held in late {
        held.ends_with("HTTP/1.1 401").await;
    }
    let keys = ours.get("/v1/keys").await.expect(200);
    assert!(!keys.to_string().contains("too late"), "{keys:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_began_goes_on_after_its_time_and_ends_with_its_role() {
    let issuer = Issuer::new();
    let app = app_of(vec![issuer.config()]).await;
    let (tenant, ours) = app.tenant("acme").await;
    let role = async |scope: &str| {
        let put = ours.request("PUT", "/v1/roles/robot").json(&json!({"scopes": [scope]}));
        ours.send(put).await.expect(200);
    };
    role("sessions:write").await;
    let mut claims = claims(&tenant.to_string(), 15);
    claims["role"] = "robot".into();
    let client = ours.with_key(&issuer.token(&claims));
    let body = json!({"metadata": {"its": "end"}});
    let goes_on = Held::ask(&client, "/v1/sessions", &body).await;
    let late = Held::ask(&client, "/v1/sessions", &body).await;
    let is_over = async || client.get("/v1/me").await.status == 401;
    until("its time is over", Duration::from_secs(60), is_over).await;
    judged_anew(&app, tenant).await;
    goes_on.goes_on("HTTP/1.1 201").await;
    role("calls:read").await;
    late.ends_with("HTTP/1.1 401").await;
}
