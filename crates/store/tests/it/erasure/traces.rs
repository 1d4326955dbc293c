//! A tenant that has something of everything, and what is found of it afterwards.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use domain::policy::EffectiveLimits;
use domain::{
    ArtifactKind, Call, CallStatus, OperatorContext, Principal, Scope, SessionEnd, SessionEndReason,
    TenantContext, TenantId,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, Row};
use store::testing::{TestDatabase, admission, new_session, new_shell, operator, tenant};
use store::{
    Admitted, Announce, AuditRow, CreatedSession, Draft, Erasure, ErasureAnswer, ErasureState, Fence,
    FileBefore, Idempotency, Keeper, Metered, NewArtifact, NewContext, NewKey, NewRole, NewShell, Objects,
    ObjectsConfig, Rotation, Sealed, SeenFile, SessionFence, Store,
};

use crate::calls::{outcome, output, worker};

/// What is nowhere but in what a tenant has said, named and written.
pub(crate) const MARK: &str = "qzx7marker";
/// The address that the tenant's people come from.
pub(crate) const ADDRESS: &str = "203.0.113.77";

pub(crate) async fn store_on(database: &TestDatabase, folder: &Path) -> Result<Store> {
    let objects = Objects::open(&ObjectsConfig::Folder(folder.to_owned()))?;
    let config = store::DatabaseConfig { objects, ..database.config() };
    Ok(Store::connect(&config, &prometheus::Registry::new()).await?)
}

pub(crate) fn marked(what: &str) -> String {
    format!("{MARK}-{what}")
}

/// A tenant that has left something everywhere. All of it has ended.
pub(crate) async fn life(store: &Store, mark: &str) -> Result<TenantContext> {
    let own = tenant(store, &format!("{mark}-name")).await?;
    let principal = Principal {
        key_id: None,
        name: format!("{mark}-person"),
        address: Some(if mark == MARK { ADDRESS } else { "198.51.100.1" }.parse()?),
        issuer: Some(format!("https://{mark}.example")),
    };
    let context = TenantContext::verified(own.tenant_id(), principal, Scope::tenant_default(), vec![]);
    let labels = BTreeMap::from([("label".to_owned(), format!("{mark}-label"))]);
    let keeper = Keeper::Tenant(&context);
    let role = NewRole { description: format!("{mark}-role"), scopes: vec![Scope::CallsRead], policy: None };
    store.put_role(keeper, "helper", role).await?;
    let key = NewKey { name: format!("{mark}-key"), scopes: vec![Scope::CallsRead], ..NewKey::default() };
    let (key, _) = store.create_own_key(&context, key).await?;
    let rotation = Rotation { old_until: store.clock().now(), expires_at: None, latest: None };
    store.rotate_key(keeper, key.id, rotation).await?;

    let worker = worker(store).await?;
    let mut new = new_session(Some(worker));
    (new.env, new.metadata) = (labels.clone(), labels.clone());
    let limits = EffectiveLimits::default();
    let key = Idempotency::of("POST sessions", format!("{mark}-idempotency"), &json!({}));
    let CreatedSession::Created(session) = store.create_session(&context, new, &limits, Some(key)).await?
    else {
        bail!("a session is created")
    };
    let fence = SessionFence::of(&session).context("assigned")?;
    store.session_running(&fence, 1).await?;
    let made = NewContext {
        id: store.clock().new_id(),
        name: Some(format!("{mark}-context")),
        language: domain::Language::Javascript,
        cwd: "/workspace".to_owned(),
        env: labels.clone(),
        metadata: labels.clone(),
    };
    store.create_context(&context, session.id, made, None).await?;
    for n in 0..3 {
        let call = call(store, &context, &session.id, worker, mark).await?;
        let own = Fence::of(&call).context("started")?;
        let bytes = format!("{mark}-output {n}");
        store.append_events(&own, Announce::Started, vec![output(0, bytes.as_bytes())]).await?;
        let shell = NewShell { command: format!("{mark}-command"), ..new_shell(store, call.id) };
        let shell = store.create_shell(&fence, shell).await?;
        let piece = domain::event::OutputPiece {
            log_offset: 0,
            stream: domain::StreamName::Stdout,
            offset: 0,
            bytes: format!("{mark}-shell").into_bytes(),
        };
        let end = piece.bytes.len() as u64;
        store.append_shell_output(&fence, shell.id, vec![piece], end).await?;
        let before = FileBefore::Content {
            bytes: format!("{mark}-before").into_bytes(),
            sha256: "ab".repeat(32),
            permissions: None,
        };
        store.plan_change(&fence, call.id, &format!("{mark}-path"), &before).await?;
        let seen = SeenFile { sha256: None, size_bytes: 1, modified_ms: None };
        store.see_file(&fence, &format!("{mark}-read"), &seen).await?;
        let mut draft = Draft::default();
        draft.push(format!("{mark}-artifact {n}").as_bytes()).await?;
        let content = draft.seal().await?;
        store.announce_artifact(&fence, &content).await?;
        store.send_artifact(context.tenant_id(), &content).await?;
        let artifact = NewArtifact {
            call_id: call.id,
            origin: "a".to_owned(),
            name: format!("{mark}-file"),
            kind: ArtifactKind::Other,
            mime_type: "text/plain".to_owned(),
            metadata: labels.clone(),
        };
        store.save_artifact(&fence, &artifact, &content).await?;
        let own = Fence { after_seq: 2, ..own };
        store.finish_call(&own, Announce::Nothing, Vec::new(), outcome(CallStatus::Succeeded)).await?;
    }
    let mut draft = Draft::default();
    draft.push(format!("{mark}-wheel").as_bytes()).await?;
    let content = draft.seal().await?;
    let name = format!("{mark}-1.0-py3-none-any.whl").parse()?;
    store.announce_wheel(&context, &content).await?;
    store.send_artifact(context.tenant_id(), &content).await?;
    store.put_wheel(&context, &name, &content).await?;
    let refused = AuditRow {
        allowed: false,
        reason: Some(format!("{mark}-reason")),
        ..AuditRow::done("call.submit", format!("{mark}-target"))
            .details(json!({"detail": format!("{mark}-detail")}))
    };
    store.audit(&context, refused).await?;
    let end = SessionEnd {
        reason: SessionEndReason::Deleted,
        message: format!("{mark}-end"),
        evidence: serde_json::Map::from_iter([("x".to_owned(), mark.into())]),
    };
    store.end_session(&fence, end).await?;
    Ok(context)
}

pub(crate) async fn call(
    store: &Store,
    context: &TenantContext,
    session: &domain::SessionId,
    worker: domain::WorkerId,
    mark: &str,
) -> Result<Call> {
    let mut admission = admission(context, *session);
    admission.reservation = Some(worker);
    admission.call.arguments = json!({"command": format!("{mark}-arguments")});
    admission.call.description = Some(format!("{mark}-description"));
    match store.admit(admission).await? {
        Admitted::Started(call) => Ok(call),
        other => bail!("not started: {other:?}"),
    }
}

pub(crate) async fn settle(store: &Store) -> Result<()> {
    while !matches!(store.seal_audit().await?, Sealed::Everything(0)) {}
    while store.meter_usage().await? != Metered::Nothing {}
    Ok(())
}

/// Tables, and how many of their rows have one of these texts in any column, as text or as bytes.
pub(crate) async fn found(database: &TestDatabase, texts: &[&str]) -> Result<Vec<(String, i64)>> {
    let mut superuser = database.superuser().await?;
    let tables = "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'";
    let mut found = Vec::new();
    for table in superuser.fetch_all(tables).await? {
        let table: String = table.try_get(0)?;
        let any: Vec<String> = texts
            .iter()
            .flat_map(|text| [(*text).to_owned(), data_encoding::HEXLOWER.encode(text.as_bytes())])
            .map(|text| format!("position('{text}' IN t::text) > 0"))
            .collect();
        let count = format!("SELECT count(*) FROM {table} t WHERE {}", any.join(" OR "));
        let rows: i64 = superuser.fetch_one(AssertSqlSafe(count)).await?.try_get(0)?;
        if rows > 0 {
            found.push((table, rows));
        }
    }
    superuser.close().await?;
    Ok(found)
}

/// Files beneath a folder.
pub(crate) fn files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { all.extend(files(&path)?) } else { all.push(path) }
    }
    Ok(all)
}

/// Until nothing moves any more.
pub(crate) async fn erase(store: &Store, operator: &OperatorContext, tenant: TenantId) -> Result<Erasure> {
    for _ in 0..500 {
        settle(store).await?;
        ensure!(store.erase_tenants().await?.failed == 0, "an erasure failed");
        let erasure = store.erasure(operator, tenant).await?;
        if erasure.state == ErasureState::Done {
            return Ok(erasure);
        }
    }
    bail!("not done: {:?}", store.erasure(operator, tenant).await?)
}

pub(crate) async fn begin(store: &Store, tenant: TenantId, name: &str) -> Result<Erasure> {
    match store.request_erasure(&operator(), tenant, name).await? {
        ErasureAnswer::Begun(erasure) => Ok(erasure),
        ErasureAnswer::WrongName => bail!("{name} is not its name"),
    }
}
