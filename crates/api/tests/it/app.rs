//! A service of its own for each test: fresh database, a tenant, an operator, and a worker that does what the test says.

use std::sync::Arc;
use std::time::Duration;

use api::{ApiConfig, ApiState, Exchange, NoExchange, Ports, Readiness, ReadinessCheck};
use domain::call::Outcome;
use domain::dispatch::NoDispatch;
use domain::event::OutputPiece;
use domain::trace::NoTraces;
use domain::{
    Call, CallEnded, CallResult, CallStatus, CallUsage, EndReason, EventBody, OperatorContext, Principal,
    StreamName, TenantId,
};
use prometheus::Registry;
use store::testing::TestDatabase;
use store::{Announce, ClaimCursor, ClaimRequest, Fence, NewKey, NewTenant, SessionFence, Store, TenantTurn};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, id_of};

/// A running service.
pub(crate) struct App {
    pub(crate) base: String,
    pub(crate) store: Store,
    pub(crate) operator: OperatorContext,
    pub(crate) registry: Registry,
    pub(crate) stop: CancellationToken,
    pub(crate) served: Option<JoinHandle<std::io::Result<()>>>,
    pub(crate) database: TestDatabase,
}

impl App {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// A service with other settings than the usual ones.
    pub(crate) async fn with(change: impl FnOnce(&mut ApiConfig)) -> Self {
        Self::on(TestDatabase::new().await.expect("a database"), change).await
    }

    /// A service on this database.
    pub(crate) async fn on(database: TestDatabase, change: impl FnOnce(&mut ApiConfig)) -> Self {
        Self::reaching(Arc::new(NoExchange), database, change).await
    }

    /// The same, which reaches the workers of sessions so.
    pub(crate) async fn reaching(
        exchange: Arc<dyn Exchange>,
        database: TestDatabase,
        change: impl FnOnce(&mut ApiConfig),
    ) -> Self {
        let registry = Registry::new();
        let store = Store::connect(&database.config(), &registry).await.expect("connects");
        let mut config = ApiConfig { signing_key: vec![9; 32], ..ApiConfig::default() };
        config.drain = Duration::from_secs(2);
        // Tests show many wrong credentials from one address.
        config.failed_auth_per_minute = 100_000;
        change(&mut config);
        let stop = CancellationToken::new();
        let checks = vec![ReadinessCheck::new("engine", || async { Ok(()) })];
        let checks = Readiness::new(&store, checks, stop.clone());
        let catalog = Arc::new(tools::Catalog::standard());
        let ports = Ports { dispatch: Arc::new(NoDispatch), exchange, traces: Arc::new(NoTraces) };
        let state = ApiState::new(store.clone(), catalog, ports, config, &registry, checks, stop.clone())
            .expect("a state");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let served = Some(tokio::spawn(api::serve(listener, state, stop.clone())));
        let operator = OperatorContext::verified(Principal::command_line());
        Self { base, store, operator, registry, stop, served, database }
    }

    /// Whether there is no service on this database with such settings.
    pub(crate) async fn refused(database: &TestDatabase, change: impl FnOnce(&mut ApiConfig)) -> bool {
        let registry = Registry::new();
        let store = Store::connect(&database.config(), &registry).await.expect("connects");
        let mut config = ApiConfig { signing_key: vec![9; 32], ..ApiConfig::default() };
        change(&mut config);
        let (catalog, stop) = (Arc::new(tools::Catalog::standard()), CancellationToken::new());
        let (dispatch, exchange) = (Arc::new(NoDispatch), Arc::new(NoExchange));
        let ports = Ports { dispatch, exchange, traces: Arc::new(NoTraces) };
        let checks = Readiness::new(&store, Vec::new(), stop.clone());
        let state = ApiState::new(store, catalog, ports, config, &registry, checks, stop);
        state.is_err()
    }

    /// A tenant with a key that may do everything.
    pub(crate) async fn tenant(&self, name: &str) -> (TenantId, Client) {
        let new = NewTenant { name: name.to_owned(), ..NewTenant::default() };
        let tenant = self.store.create_tenant(&self.operator, new).await.expect("a tenant");
        (tenant.id, self.key(tenant.id, domain::Scope::tenant_default()).await.1)
    }

    pub(crate) async fn client(&self) -> Client {
        self.tenant("acme").await.1
    }

    /// A key of a tenant.
    pub(crate) async fn key(
        &self,
        tenant_id: TenantId,
        scopes: Vec<domain::Scope>,
    ) -> (domain::KeyId, Client) {
        let new = NewKey { name: "a key".to_owned(), scopes, ..NewKey::default() };
        let (key, plain) = self.store.create_key(&self.operator, tenant_id, new).await.expect("a key");
        (key.id, Client::new(&self.base, plain.reveal()))
    }

    /// An operator's client.
    pub(crate) async fn operator(&self) -> Client {
        let (_, plain) = self.store.create_operator_key(&self.operator, "op", None).await.expect("a key");
        Client::new(&self.base, plain.reveal())
    }

    pub(crate) async fn worker(&self) -> Worker {
        let host = self.store.register_host("here").await.expect("a host");
        let lease = self.store.register_worker(host).await.expect("a lease");
        // Nothing here is about leases, and on a busy machine one may be over between two renewals.
        self.database.execute("UPDATE workers SET lease_expires_at = 'infinity'").await.expect("is for good");
        Worker { store: self.store.clone(), id: lease.worker_id, cursor: ClaimCursor::default() }
    }

    /// A call of a fresh session that a worker has just been given.
    pub(crate) async fn running(&self, client: &Client) -> Running {
        let mut worker = self.worker().await;
        let session = client.session().await;
        let call = client.submit(&session).await;
        worker.serve_sessions().await;
        let running = worker.claim().await;
        assert_eq!(running.id(), call);
        running
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).expect("a metric");
        let metrics = family.get_metric().iter();
        metrics.map(|metric| metric.get_gauge().get_value() + metric.get_counter().get_value()).sum()
    }
}

/// What stands in for a worker: it does what the test says.
pub(crate) struct Worker {
    store: Store,
    id: domain::WorkerId,
    cursor: ClaimCursor,
}

impl Worker {
    pub(crate) fn id(&self) -> domain::WorkerId {
        self.id
    }

    /// Takes on every session that waits for a worker.
    pub(crate) async fn serve_sessions(&self) {
        for session in self.store.claim_sessions(self.id, 100).await.expect("sessions") {
            let fence = SessionFence::of(&session).expect("has a worker");
            self.store.session_running(&fence, 1).await.expect("runs");
        }
    }

    /// The next call.
    pub(crate) async fn claim(&mut self) -> Running {
        let waiting = self.store.tenants_waiting(self.id).await.expect("tenants");
        let turn = |tenant_id| TenantTurn { tenant_id, slots: 1, session_running_limit: 100 };
        let turns = waiting.iter().map(|tenant| turn(tenant.tenant_id)).collect();
        let request = ClaimRequest { max: 1, turns, running: Vec::new() };
        let claimed = self.store.claim_calls(self.id, &request, &mut self.cursor).await.expect("calls");
        let call = claimed.into_iter().next().expect("a call waits");
        let fence = Fence::of(&call).expect("has a worker");
        Running {
            store: self.store.clone(),
            fence,
            call,
            announce: Announce::Started,
            log: 0,
            offsets: [0; 2],
        }
    }
}

/// A call that the test runs.
pub(crate) struct Running {
    store: Store,
    fence: Fence,
    pub(crate) call: Call,
    announce: Announce,
    log: u64,
    offsets: [u64; 2],
}

impl Running {
    pub(crate) fn id(&self) -> String {
        self.call.id.to_string()
    }

    async fn append(&mut self, events: Vec<EventBody>) {
        let announce = std::mem::replace(&mut self.announce, Announce::Nothing);
        let appended = self.store.append_events(&self.fence, announce, events).await.expect("appended");
        self.fence.after_seq = appended.last_seq;
    }

    /// `call.started`.
    pub(crate) async fn start(&mut self) {
        self.append(Vec::new()).await;
    }

    /// Bytes on stdout: one event each.
    pub(crate) async fn write(&mut self, pieces: &[&[u8]]) {
        self.write_to(StreamName::Stdout, pieces).await;
    }

    pub(crate) async fn write_to(&mut self, stream: StreamName, pieces: &[&[u8]]) {
        let mut events = Vec::new();
        for bytes in pieces {
            let offset = &mut self.offsets[stream.number() as usize - 1];
            let piece = OutputPiece { log_offset: self.log, stream, offset: *offset, bytes: bytes.to_vec() };
            *offset += bytes.len() as u64;
            self.log += bytes.len() as u64;
            events.push(EventBody::Output(piece));
        }
        self.append(events).await;
    }

    /// Leaves bytes of the log out, as a call does that writes too much.
    pub(crate) fn drop_bytes(&mut self, stream: StreamName, bytes: u64) {
        self.log += bytes;
        self.offsets[stream.number() as usize - 1] += bytes;
    }

    /// The end: it succeeded.
    pub(crate) async fn finish(self) {
        self.finish_with(succeeded()).await;
    }

    /// This end.
    pub(crate) async fn finish_with(self, outcome: Outcome) {
        self.store.finish_call(&self.fence, self.announce, Vec::new(), outcome).await.expect("finished");
    }
}

/// The end of a call that went well.
pub(crate) fn succeeded() -> Outcome {
    Outcome {
        status: CallStatus::Succeeded,
        result: Some(CallResult { output: "done".to_owned(), exit_code: Some(0), ..CallResult::default() }),
        error: None,
        ended: CallEnded::because(EndReason::Exited),
        usage: CallUsage { duration_ms: 5, ..CallUsage::default() },
    }
}

/// A call that has ended, with so many pieces of output.
pub(crate) async fn ended_call(app: &App, client: &Client, pieces: &[&[u8]]) -> String {
    let mut running = app.running(client).await;
    running.start().await;
    for piece in pieces {
        running.write(&[piece]).await;
    }
    let id = running.id();
    running.finish().await;
    id
}

/// Ids of a list.
pub(crate) fn ids(list: &serde_json::Value) -> Vec<String> {
    list["data"].as_array().expect("a list").iter().map(id_of).collect()
}
