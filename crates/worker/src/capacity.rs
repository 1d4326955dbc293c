//! What a host has for sessions, and how much of it the warm pool may set aside.

use std::sync::Arc;
use std::time::Duration;

use store::{HostCapacity, HostShare, WorkerRoom};

use crate::WorkerConfig;
use crate::tenure::Tenure;

/// Pause between attempts to say what there is room for.
const RETRY: Duration = Duration::from_millis(500);

/// Cuts the warm pool to its part of the host, the last entries first. Returns what it holds at most.
pub(crate) fn fit_pool(config: &mut WorkerConfig) -> HostShare {
    let (host, share) = (config.capacity.host, config.capacity.pool_share);
    let mut taken = HostShare::default();
    for entry in &mut config.sandbox.pool {
        let one = entry.size.resources();
        let mut fitting = 0;
        while fitting < entry.count {
            let more = HostShare {
                cpus: taken.cpus + one.cpus,
                memory_mb: taken.memory_mb + u64::from(one.memory_mb),
                disk_mb: taken.disk_mb + u64::from(one.disk_mb),
                sandboxes: taken.sandboxes + 1,
            };
            if !fits(more, host, share) {
                break;
            }
            taken = more;
            fitting += 1;
        }
        if fitting < entry.count {
            tracing::warn!(
                size = entry.size.as_str(),
                wanted = entry.count,
                fitting,
                "the warm pool is cut to its share of the host (capacity.pool_share)"
            );
            entry.count = fitting;
        }
    }
    taken
}

fn fits(taken: HostShare, host: HostCapacity, share: f64) -> bool {
    let within = |taken: f64, all: Option<f64>| all.is_none_or(|all| taken <= all * share);
    within(taken.cpus, host.cpus.map(|cpus| cpus * host.cpu_overcommit))
        && within(taken.memory_mb as f64, host.memory_mb.map(|mb| mb as f64))
        && within(taken.disk_mb as f64, host.disk_mb.map(|mb| mb as f64))
        && within(f64::from(taken.sandboxes), host.sandboxes.map(f64::from))
}

/// Says what this worker keeps and what its pool holds, so that no more sessions are promised room than there is.
pub(crate) async fn announce(tenure: Arc<Tenure>, pool: HostShare) {
    let room = WorkerRoom { sessions: Some(tenure.core.config.sessions), pool };
    while let Err(error) = tenure.store().set_worker_room(tenure.worker_id(), room).await {
        tracing::debug!(%error, "what there is room for could not be said yet");
        tokio::select! {
            () = tenure.ended.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(size: domain::SizeClass, count: usize) -> sandbox::PoolEntry {
        sandbox::PoolEntry { image: None, size, runtime: None, count }
    }

    fn config(memory_mb: Option<u64>, pool: Vec<sandbox::PoolEntry>) -> WorkerConfig {
        let host = HostCapacity { memory_mb, cpu_overcommit: 1.0, ..HostCapacity::default() };
        WorkerConfig {
            installation: String::new(),
            host: String::new(),
            internal_address: None,
            slots: 1,
            sessions: 1,
            policy: domain::policy::Policy::default(),
            retention: store::Retention::default(),
            artifacts_days: 90,
            on_shutdown: crate::OnShutdown::EndSessions,
            capacity: crate::Capacity { host, pool_share: 0.25 },
            sandbox: sandbox::Config { pool, ..sandbox::Config::default() },
        }
    }

    #[test]
    fn a_pool_within_its_share_stays_and_a_larger_one_is_cut() {
        use domain::SizeClass::{Medium, Small};
        let mut whole = config(Some(16_384), vec![entry(Small, 4), entry(Medium, 1)]);
        let taken = fit_pool(&mut whole);
        assert_eq!((taken.memory_mb, taken.sandboxes), (4 * 512 + 2_048, 5));
        let mut cut = config(Some(8_192), vec![entry(Small, 3), entry(Medium, 1)]);
        let taken = fit_pool(&mut cut);
        assert_eq!((taken.memory_mb, taken.sandboxes), (3 * 512, 3));
        assert_eq!(cut.sandbox.pool.iter().map(|entry| entry.count).collect::<Vec<_>>(), [3, 0]);
        let mut uncounted = config(None, vec![entry(Small, 100)]);
        assert_eq!(fit_pool(&mut uncounted).sandboxes, 100);
    }
}
