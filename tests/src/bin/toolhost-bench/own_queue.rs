//! Our own queue without a sandbox: calls that do nothing, admitted and ended through the store's door as API and worker use it.
//!
//! It has a runtime with a thread for each core, as the service has, and the sealer of the audit trail works beside it each second,
//! as in the service.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use domain::call::Outcome;
use domain::policy::EffectiveLimits;
use domain::{
    Call, CallEnded, CallResult, CallStatus, CallUsage, Effect, EndReason, OperatorContext, Principal, Scope,
    Session, SessionId, SizeClass, TenantContext, WorkerId,
};
use serde_json::json;
use store::{
    Admission, AdmitSession, Admitted, Announce, CallDecision, ClaimCursor, ClaimRequest, CreatedSession,
    DatabaseConfig, Fence, NewCall, NewSession, NewTenant, SessionFence, Store, TenantTurn,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::window::Window;

/// Clients at once, each with a session of its own.
const CLIENTS: usize = 64;
const RENEWAL: Duration = Duration::from_millis(1_500);
const SEAL: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_secs(1);

/// How a call comes to its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It starts with its admission, as when its session's worker is in this process and has room.
    AtOnce,
    /// It is queued, and claimed by the worker.
    Claimed,
}

/// A store with a worker's lease and sessions.
#[derive(Debug)]
pub(crate) struct OwnQueue {
    runtime: Runtime,
    shared: Arc<Shared>,
    beside: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    context: TenantContext,
    worker: WorkerId,
    sessions: Vec<SessionId>,
    /// Rings for the client of a session when its call has ended.
    bells: HashMap<SessionId, Notify>,
}

impl OwnQueue {
    /// On this database, whose schema it makes.
    ///
    /// # Errors
    /// When the database refuses.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let url = url.to_owned();
        let shared = Arc::new(runtime.spawn(async move { Shared::open(&url).await }).await??);
        let beside =
            vec![runtime.spawn(renew(Arc::clone(&shared))), runtime.spawn(seal(Arc::clone(&shared)))];
        Ok(Self { runtime, shared, beside })
    }

    /// Calls per second that 64 clients bring to their end in this way, over so long.
    ///
    /// # Errors
    /// When one of them fails.
    pub(crate) async fn calls_per_second(&self, way: Way, slice: Duration) -> Result<f64> {
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move { shared.slice(way, slice).await }).await?
    }

    /// Closes it.
    pub(crate) async fn close(self) {
        for task in &self.beside {
            task.abort();
        }
        let shared = Arc::clone(&self.shared);
        let _ = self.runtime.spawn(async move { shared.store.close().await }).await;
        // Waiting for it is not allowed here, and nothing is left to wait for.
        self.runtime.shutdown_background();
    }
}

impl Shared {
    async fn open(url: &str) -> Result<Self> {
        Store::migrate(url).await?;
        // As many connections as the service has by default.
        let config = DatabaseConfig::new(url, [7_u8; 32]);
        let store = Store::connect(&config, &prometheus::Registry::new()).await?;
        let new = NewTenant { name: "bench".to_owned(), ..NewTenant::default() };
        let operator = OperatorContext::verified(Principal::command_line());
        let tenant = store.create_tenant(&operator, new).await?;
        let principal = Principal { key_id: None, name: "bench".to_owned(), address: None, issuer: None };
        let context =
            TenantContext::verified(tenant.id, principal, Scope::tenant_default(), vec![tenant.policy]);
        let host = store.register_host("bench").await?;
        let worker = store.register_worker(host).await?.worker_id;
        let mut sessions = Vec::new();
        for _ in 0..CLIENTS {
            sessions.push(running_session(&store, &context, worker).await?.id);
        }
        let bells = sessions.iter().map(|id| (*id, Notify::new())).collect();
        Ok(Self { store, context, worker, sessions, bells })
    }

    async fn slice(self: Arc<Self>, way: Way, slice: Duration) -> Result<f64> {
        let window = Window::from_now(slice);
        let counted = Arc::new(AtomicUsize::new(0));
        let claimer = (way == Way::Claimed).then(|| tokio::spawn(Arc::clone(&self).claim()));
        let mut clients = JoinSet::new();
        for session in self.sessions.clone() {
            let (shared, counted) = (Arc::clone(&self), Arc::clone(&counted));
            clients.spawn(async move {
                while window.is_open() {
                    shared.call(way, session).await?;
                    counted.fetch_add(window.counts_now(), Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        while let Some(client) = clients.join_next().await {
            client??;
        }
        if let Some(claimer) = claimer {
            claimer.abort();
        }
        Ok(window.rate([counted.load(Ordering::Relaxed)]))
    }

    /// One call, from its admission to its end, both durable.
    async fn call(&self, way: Way, session: SessionId) -> Result<()> {
        let reservation = (way == Way::AtOnce).then_some(self.worker);
        match (way, self.store.admit(admission(&self.context, session, reservation)).await?) {
            (Way::AtOnce, Admitted::Started(call)) => self.finish(&call).await,
            (Way::Claimed, Admitted::Queued(..)) => {
                self.bells[&session].notified().await;
                Ok(())
            }
            (_, other) => bail!("the call was not admitted: {other:?}"),
        }
    }

    async fn finish(&self, call: &Call) -> Result<()> {
        let fence = Fence::of(call).context("the call has no worker")?;
        self.store.finish_call(&fence, Announce::Started, Vec::new(), outcome()).await?;
        Ok(())
    }

    /// Claims what is queued, woken by hints as a worker is, until it is stopped.
    async fn claim(self: Arc<Self>) {
        let mut cursor = ClaimCursor::default();
        let mut hints = self.store.bus().subscribe_queue();
        let turn = TenantTurn {
            tenant_id: self.context.tenant_id(),
            slots: CLIENTS as u32,
            session_running_limit: 4,
        };
        let request = ClaimRequest { max: CLIENTS as u32, turns: vec![turn], running: Vec::new() };
        loop {
            tokio::select! {
                _ = hints.next() => {}
                () = tokio::time::sleep(POLL) => {}
            }
            for call in self.store.claim_calls(self.worker, &request, &mut cursor).await.unwrap_or_default() {
                let shared = Arc::clone(&self);
                tokio::spawn(async move {
                    if let Err(error) = shared.finish(&call).await {
                        eprintln!("a call was not ended: {error:#}");
                    }
                    shared.bells[&call.session_id].notify_one();
                });
            }
        }
    }
}

async fn renew(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(RENEWAL).await;
        if let Err(error) = shared.store.renew_lease(shared.worker).await {
            eprintln!("the lease was not renewed: {error}");
        }
    }
}

async fn seal(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(SEAL).await;
        while let Ok(store::Sealed::Some(_)) = shared.store.seal_audit().await {}
    }
}

async fn running_session(store: &Store, context: &TenantContext, worker: WorkerId) -> Result<Session> {
    let new = NewSession {
        image: "none".to_owned(),
        size: Some(SizeClass::Small),
        resources: SizeClass::Small.resources(),
        runtime: "runc".to_owned(),
        env: BTreeMap::new(),
        metadata: BTreeMap::new(),
        policy: None,
        idle_timeout_s: 86_400,
        lifetime_s: 86_400,
        assign: Some(worker),
    };
    let limits = EffectiveLimits { sessions: 10_000, ..EffectiveLimits::default() };
    let CreatedSession::Created(session) = store.create_session(context, new, &limits, None).await? else {
        bail!("a session was refused")
    };
    let fence = SessionFence::of(&session).context("the worker's lease is over")?;
    Ok(store.session_running(&fence, 1).await?)
}

fn admission(context: &TenantContext, session: SessionId, reservation: Option<WorkerId>) -> Admission {
    Admission {
        context: context.clone(),
        session: AdmitSession::Existing(session),
        call: NewCall {
            tool: "bash".to_owned(),
            requested_tool: None,
            version: "1".to_owned(),
            effect: Effect::Effectful,
            arguments: json!({"command": "true"}),
            description: None,
            timeout_ms: 120_000,
            output_budget_bytes: 30_000,
            after_call_id: None,
            parent_call_id: None,
            metadata: BTreeMap::new(),
            trace: None,
        },
        decision: CallDecision::Allowed,
        reservation,
        limits: EffectiveLimits::default(),
        idempotency: None,
    }
}

/// What a command that prints nothing leaves.
fn outcome() -> Outcome {
    Outcome {
        status: CallStatus::Succeeded,
        result: Some(CallResult {
            is_error: false,
            output: String::new(),
            structured: json!({"stdout": "", "stderr": "", "exit_code": 0}),
            content: Vec::new(),
            exit_code: Some(0),
            signal: None,
            system: None,
            truncated: None,
            cached: false,
        }),
        error: None,
        ended: CallEnded::because(EndReason::Exited),
        usage: CallUsage::default(),
    }
}
