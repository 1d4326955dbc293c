//! Maintenance: one small verb each, repeated, idempotent, safe to run in every worker at once.

use std::sync::Arc;
use std::time::Duration;

use domain::limits::{ARTIFACT_SWEEP_S, KILL_GRACE_MS, POLL_MS};
use tokio::time::{MissedTickBehavior, interval};

use crate::claims::give_back;
use crate::journals::{Suspects, reconcile};
use crate::sessions::refresh_limits;
use crate::shell_time::note_times;
use crate::tenure::Tenure;

/// Days ahead for which there are partitions.
const PARTITION_DAYS: u32 = 7;

// The promise of docs/security.md and docs/operations.md: what a revoked key or a suspended tenant has open ends within five seconds. What a process
// takes on that still remembers the credential is found by the sweep, and ended by a worker that looks for itself.
const _: () = assert!(
    5_000
        > store::REMEMBER.as_millis() + Sweep::Ends.period().as_millis() + (POLL_MS + KILL_GRACE_MS) as u128
);

/// One verb of maintenance.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sweep {
    AuditSeal,
    Usage,
    Erasures,
    Ends,
    ShellTimes,
    Partitions,
    Retention,
    IdempotencyKeys,
    RemovedSandboxes,
    EndedFiles,
    OldArtifacts,
    UnwantedObjects,
    LostHosts,
    SurplusSlots,
    Limits,
    Journals,
    StoredBytes,
    Counts,
}

impl Sweep {
    pub(crate) const ALL: [Self; 18] = [
        Self::AuditSeal,
        Self::Usage,
        Self::Erasures,
        Self::Ends,
        Self::ShellTimes,
        Self::Partitions,
        Self::Retention,
        Self::IdempotencyKeys,
        Self::RemovedSandboxes,
        Self::EndedFiles,
        Self::OldArtifacts,
        Self::UnwantedObjects,
        Self::LostHosts,
        Self::SurplusSlots,
        Self::Limits,
        Self::Journals,
        Self::StoredBytes,
        Self::Counts,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AuditSeal => "audit_seal",
            Self::Usage => "usage",
            Self::Erasures => "erasures",
            Self::Ends => "ends",
            Self::ShellTimes => "shell_times",
            Self::Partitions => "partitions",
            Self::Retention => "retention",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::RemovedSandboxes => "removed_sandboxes",
            Self::EndedFiles => "ended_files",
            Self::OldArtifacts => "old_artifacts",
            Self::UnwantedObjects => "unwanted_objects",
            Self::LostHosts => "lost_hosts",
            Self::SurplusSlots => "surplus_slots",
            Self::Limits => "limits",
            Self::Journals => "journals",
            Self::StoredBytes => "stored_bytes",
            Self::Counts => "counts",
        }
    }

    const fn period(self) -> Duration {
        Duration::from_millis(match self {
            // A row is sealed within a second.
            Self::AuditSeal => 500,
            Self::Ends => 1_000,
            Self::Usage | Self::Erasures => 2_000,
            Self::Limits | Self::ShellTimes => 5_000,
            Self::LostHosts | Self::SurplusSlots | Self::Counts => 10_000,
            Self::Journals => 60_000,
            Self::IdempotencyKeys | Self::RemovedSandboxes | Self::EndedFiles | Self::UnwantedObjects => {
                600_000
            }
            Self::Partitions | Self::Retention | Self::StoredBytes | Self::OldArtifacts => 3_600_000,
        })
    }

    async fn pass(self, tenure: &Arc<Tenure>, suspects: &Suspects) -> store::Result<()> {
        let store = tenure.store();
        match self {
            Self::AuditSeal => while let store::Sealed::Some(_) = store.seal_audit().await? {},
            Self::Usage => while store.meter_usage().await? == store::Metered::Some {},
            Self::Erasures => erase(self, tenure).await?,
            Self::Ends => drop(store.ask_ends().await?),
            Self::ShellTimes => note_times(tenure).await?,
            Self::Partitions => drop(store.ensure_partitions(PARTITION_DAYS).await?),
            Self::Retention => {
                let retention = tenure.core.config.retention;
                let dropped = store.drop_old(retention).await?;
                store.prune_tenants(retention).await?;
                store.prune_session_usage(retention.calls_days).await?;
                if dropped != store::Dropped::default() {
                    tracing::info!(events = dropped.events, calls = dropped.calls, "dropped old partitions");
                }
            }
            Self::IdempotencyKeys => drop(store.prune_idempotency().await?),
            Self::RemovedSandboxes => drop(store.prune_sandboxes().await?),
            Self::EndedFiles => drop(store.prune_files().await?),
            Self::OldArtifacts => {
                let dropped = store.drop_old_artifacts(tenure.core.config.artifacts_days).await?;
                if dropped > 0 {
                    tracing::info!(artifacts = dropped, "dropped old artifacts");
                }
            }
            Self::UnwantedObjects => drop(store.sweep_artifact_objects(ARTIFACT_SWEEP_S).await?),
            Self::LostHosts => {
                let ended = store.end_lost_hosts().await?;
                if ended > 0 {
                    tracing::warn!(sessions = ended, "ended sessions of lost hosts");
                }
            }
            Self::SurplusSlots => give_back(tenure).await?,
            Self::Limits => refresh_limits(tenure).await?,
            Self::Journals => reconcile(tenure, suspects).await,
            Self::StoredBytes => {
                let _ = store.recount_stored(tenure.core.config.retention.events_days).await?;
            }
            Self::Counts => count(tenure).await?,
        }
        Ok(())
    }
}

async fn erase(sweep: Sweep, tenure: &Tenure) -> store::Result<()> {
    while tenure.lease.is_healthy() {
        let pass = tenure.store().erase_tenants().await?;
        tenure.metrics().sweep_failures.with_label_values(&[sweep.name()]).inc_by(pass.failed);
        if !pass.more {
            break;
        }
    }
    Ok(())
}

async fn count(tenure: &Tenure) -> store::Result<()> {
    let counts = tenure.store().counts().await?;
    let gauges = &tenure.metrics().installation;
    for (kind, count) in [
        ("queued", counts.queued),
        ("active", counts.active),
        ("sessions", counts.sessions),
        ("sandboxes", counts.sandboxes),
        ("workers", counts.workers),
    ] {
        gauges.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    for (gauge, seconds) in [
        (&tenure.metrics().oldest_queued, counts.oldest_queued_s),
        (&tenure.metrics().audit_lag, counts.audit_lag_s),
    ] {
        gauge.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }
    Ok(())
}

/// Starts every sweep; they end with the tenure.
pub(crate) fn start(tenure: &Arc<Tenure>) {
    for sweep in Sweep::ALL {
        let tenure_of_task = Arc::clone(tenure);
        tenure.spawn(async move { repeat(&tenure_of_task, sweep).await });
    }
}

async fn repeat(tenure: &Arc<Tenure>, sweep: Sweep) {
    let suspects = Suspects::default();
    let mut period = interval(sweep.period());
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = tenure.ended.cancelled() => return,
            _ = period.tick() => {}
        }
        if !tenure.lease.is_healthy() {
            continue;
        }
        if let Err(error) = sweep.pass(tenure, &suspects).await {
            tenure.metrics().sweep_failures.with_label_values(&[sweep.name()]).inc();
            tracing::warn!(sweep = sweep.name(), %error, "a sweep failed");
        }
    }
}
