//! Keys: made, presented, attacked, revoked.

use anyhow::{Context, Result, bail};
use chrono::TimeDelta;
use domain::policy::Policy;
use domain::{CallId, CallStatus, Scope, ShellId, TenantStatus};
use store::testing::{TestDatabase, new_shell, operator, running_session, tenant, until};
use store::{
    AuditFilter, AuthRefusal, Authenticated, Expiry, Hint, NewKey, NewTenant, Page, SessionFence, ShellEnd,
    ShellToEnd, ShellWish, Store, StoreError,
};

use crate::calls::{queued, started, worker};

fn new_key(name: &str) -> NewKey {
    NewKey { name: name.to_owned(), scopes: vec![Scope::CallsRead, Scope::KeysWrite], ..NewKey::default() }
}

#[tokio::test]
async fn a_key_speaks_for_its_tenant_with_its_scopes_and_policies() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let policy: Policy = serde_json::from_value(serde_json::json!({"limits": {"sessions": 3}}))?;
    let new = NewTenant { name: "acme".to_owned(), policy: policy.clone(), ..NewTenant::default() };
    let acme = store.create_tenant(&operator(), new.clone()).await?;
    assert!(matches!(store.create_tenant(&operator(), new).await, Err(StoreError::Conflict { .. })));
    let own: Policy = serde_json::from_value(serde_json::json!({"tools": {"disabled": ["bash"]}}))?;
    let wanted = NewKey { policy: Some(own.clone()), ..new_key("ci") };
    let (key, plain) = store.create_key(&operator(), acme.id, wanted).await?;
    let address = "192.0.2.1".parse()?;
    for _ in 0..2 {
        let Authenticated::Tenant(context) = store.authenticate(plain.reveal(), Some(address)).await? else {
            bail!("a tenant's key")
        };
        assert_eq!(context.tenant_id(), acme.id);
        assert_eq!(context.scopes(), [Scope::CallsRead, Scope::KeysWrite]);
        assert_eq!(context.policies(), [policy.clone(), own.clone()]);
        assert_eq!(context.principal().key_id, Some(key.id));
        assert_eq!(context.principal().address, Some(address));
    }
    let (_, above) = store.create_operator_key(&operator(), "root", None).await?;
    assert!(matches!(store.authenticate(above.reveal(), None).await?, Authenticated::Operator(_)));

    let greedy = NewKey { scopes: vec![Scope::Operator], ..new_key("greedy") };
    assert!(matches!(store.create_key(&operator(), acme.id, greedy).await, Err(StoreError::Conflict { .. })));
    let nobody = store.create_key(&operator(), store.clock().new_id(), new_key("x")).await;
    assert!(matches!(nobody, Err(StoreError::NotFound { .. })));
    let listed = store.list_keys(&operator(), Some(acme.id), Page::default()).await?;
    assert_eq!(listed.items.iter().map(|key| key.id).collect::<Vec<_>>(), [key.id]);
    Ok(())
}

#[tokio::test]
async fn what_is_not_a_valid_key_is_refused_and_the_right_way() -> Result<()> {
    let database = TestDatabase::new().await?;
    let store = database.store().await?;
    let context = tenant(&store, "acme").await?;
    let (key, plain) = store.create_own_key(&context, new_key("a")).await?;
    let (other, _) = store.create_own_key(&context, new_key("b")).await?;
    let good = plain.reveal();

    let id = |key: &store::ApiKey| key.id.to_string().trim_start_matches("key_").to_owned();
    let long = "x".repeat(1 << 20);
    let malformed = [
        String::new(),
        "th_".to_owned(),
        good[..good.len() - 1].to_owned(),
        format!("{good}0"),
        format!(" {good}"),
        format!("{good}\n"),
        good.to_uppercase(),
        good.replacen("th_", "TH_", 1),
        good.replace(&id(&key), &id(&other)),
        format!("{}{}", &good[..good.len() - 1], if good.ends_with('0') { '1' } else { '0' }),
        format!("{}é{}", &good[..40], &good[42..]),
        good.replace('_', "\0"),
        "' OR 1=1 --".to_owned(),
        long,
        "Bearer x".to_owned(),
    ];
    for text in &malformed {
        let refused = store.authenticate(text, None).await;
        assert!(matches!(refused, Err(AuthRefusal::Malformed)), "{text:.100}");
    }
    // Well formed, with a right check sum, but of another installation: another pepper, another secret.
    let elsewhere = TestDatabase::new().await?;
    let foreign = elsewhere.store().await?;
    let (_, unknown) = foreign.create_operator_key(&operator(), "x", None).await?;
    assert!(matches!(store.authenticate(unknown.reveal(), None).await, Err(AuthRefusal::Unknown)));
    let mut config = database.config();
    config.pepper = vec![8; 32];
    let other_pepper = Store::connect(&config, &prometheus::Registry::new()).await?;
    assert!(matches!(other_pepper.authenticate(good, None).await, Err(AuthRefusal::Unknown)));

    let past = NewKey { expires_at: Some(store.clock().now() - TimeDelta::seconds(1)), ..new_key("past") };
    let (late, expired) = store.create_own_key(&context, past).await?;
    // What it began may come to its end, unless it is revoked; it begins nothing.
    let again = async || store.authenticate_again(expired.reveal(), None, Expiry::IsLetPass).await;
    assert!(again().await.is_ok());
    assert!(matches!(store.authenticate(expired.reveal(), None).await, Err(AuthRefusal::Expired)));
    store.revoke_own_key(&context, late.id).await?;
    assert!(matches!(again().await, Err(AuthRefusal::Revoked)));

    assert!(store.authenticate(good, None).await.is_ok());
    store.revoke_own_key(&context, key.id).await?;
    assert!(
        matches!(store.authenticate(good, None).await, Err(AuthRefusal::Revoked)),
        "at once where it was revoked"
    );
    assert!(store.revoke_own_key(&context, key.id).await?.revoked_at.is_some(), "twice is no error");

    let trail =
        store.list_audit(&context, &AuditFilter::default(), Page { limit: 100, after: None }).await?.items;
    let refused: Vec<_> =
        trail.iter().filter(|row| row.action == "auth.refuse").map(|row| row.reason.as_deref()).collect();
    assert_eq!(
        refused,
        [Some("revoked"), Some("revoked"), Some("expired")],
        "those of known keys are the tenant's to see"
    );
    Ok(())
}

#[tokio::test]
async fn revocation_and_suspension_hold_in_other_processes_within_seconds() -> Result<()> {
    let database = TestDatabase::new().await?;
    let (here, there) = (database.store().await?, database.store().await?);
    let context = tenant(&here, "acme").await?;
    let worker = worker(&here).await?;
    let session = running_session(&here, &context, worker).await?;
    let (key, plain) = here.create_own_key(&context, new_key("a")).await?;
    let (_, second) = here.create_own_key(&context, new_key("b")).await?;
    for text in [&plain, &second] {
        assert!(there.authenticate(text.reveal(), None).await.is_ok());
    }
    here.revoke_key(&operator(), key.id).await?;
    here.set_tenant_status(&operator(), context.tenant_id(), TenantStatus::Suspended).await?;
    until("it holds everywhere", std::time::Duration::from_secs(60), async || {
        let first = there.authenticate(plain.reveal(), None).await;
        let second = there.authenticate(second.reveal(), None).await;
        matches!((first, second), (Err(AuthRefusal::Revoked), Err(AuthRefusal::TenantSuspended)))
    })
    .await;
    assert!(here.get_session(&context, session.id).await?.end_requested);
    here.set_tenant_status(&operator(), context.tenant_id(), TenantStatus::Active).await?;
    assert!(there.authenticate(second.reveal(), None).await.is_ok());
    let found = here.find_tenant(&operator(), "acme").await?;
    assert_eq!(found.id, context.tenant_id());
    here.set_tenant_policy(&operator(), found.id, &Policy::default()).await?;
    here.policy_of_tenant(&context).await.context("its own policy")?;
    Ok(())
}

async fn shell(store: &Store, fence: &SessionFence, call_id: CallId) -> Result<ShellId> {
    let new = new_shell(store, call_id);
    Ok(store.create_shell(fence, new).await?.id)
}

#[tokio::test]
async fn what_is_taken_on_for_a_revoked_key_ends_all_the_same_and_so_do_its_shells() -> Result<()> {
    let database = TestDatabase::new().await?;
    let (here, there) = (database.store().await?, database.store().await?);
    let ours = tenant(&here, "acme").await?;
    let worker = worker(&here).await?;
    let session = running_session(&here, &ours, worker).await?;
    let fence = SessionFence::of(&session).context("assigned")?;
    let (key, plain) = here.create_own_key(&ours, new_key("a")).await?;
    let Authenticated::Tenant(theirs) = there.authenticate(plain.reveal(), None).await? else {
        bail!("a tenant's key")
    };
    let early = started(&there, &theirs, session.id, worker).await?;
    let early_shell = shell(&here, &fence, early.id).await?;
    here.revoke_own_key(&ours, key.id).await?;
    let wanted = |id| ShellToEnd { id, session_id: session.id, wish: ShellWish::KeyRevoked };
    assert_eq!(here.shells_wanting_end(worker).await?, [wanted(early_shell)]);
    assert!(here.get_call(&ours, early.id).await?.cancel_requested);

    // By a process that has not heard of it, or in a request that was let in before.
    let running = started(&there, &theirs, session.id, worker).await?;
    let waiting = queued(&there, &theirs, session.id).await?;
    let late_shell = shell(&here, &fence, running.id).await?;
    // Started by a binary from before, which notes no key.
    let old_shell = shell(&here, &fence, running.id).await?;
    let mut raw = database.superuser().await?;
    let unknown = sqlx::query("UPDATE shells SET key_id = NULL WHERE id = $1").bind(old_shell.uuid());
    unknown.execute(&mut raw).await?;
    let untouched = started(&here, &ours, session.id, worker).await?;
    shell(&here, &fence, untouched.id).await?;
    let mut hints = here.bus().subscribe_queue();
    here.ask_ends().await?;
    while hints.next().await != Hint::CancelRequested(running.id) {}
    while hints.next().await != Hint::SessionChanged(session.id) {}
    assert!(here.get_call(&ours, running.id).await?.cancel_requested);
    let ended = here.get_call(&ours, waiting.id).await?;
    let cause = ended.ended.context("has ended")?.evidence["cause"].clone();
    assert_eq!((ended.status, cause), (CallStatus::Cancelled, "key_revoked".into()));
    assert!(!here.get_call(&ours, untouched.id).await?.cancel_requested);
    let mut to_end = here.shells_wanting_end(worker).await?;
    to_end.sort_by_key(|shell| shell.id);
    assert_eq!(to_end, [early_shell, late_shell, old_shell].map(wanted));

    let end = ShellEnd { end_reason: Some("key_revoked".to_owned()), ..ShellEnd::default() };
    here.finish_shell(&fence, early_shell, end).await?;
    assert_eq!(here.shells_wanting_end(worker).await?.len(), 2);
    assert_eq!(here.ask_ends().await?, 0, "each once");
    Ok(())
}
