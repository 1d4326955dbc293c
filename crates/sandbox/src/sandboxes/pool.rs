//! The warm pool: connected sandboxes that wait for a claim, refilled off the path of requests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::SizeClass;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

use super::WorkspaceFate;
use super::core::{Core, release};
use super::launch::{Plan, launch};
use crate::sandbox::Sandbox;
use crate::{Config, Metrics};

/// How often the pool is looked over without being woken.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Pauses after creations that failed, doubling.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// How long a refill waits at most for claims that are under way: under a load that never ends it goes on beside them.
const QUIET_LIMIT: Duration = Duration::from_secs(1);

/// What distinguishes warm sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) image: String,
    pub(super) size: SizeClass,
    pub(super) runtime: String,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: VecDeque<Sandbox>,
    being_made: usize,
    failures: u32,
    not_before: Option<Instant>,
}

/// The shelves of warm sandboxes.
#[derive(Debug)]
pub(super) struct Pool {
    wanted: Vec<(Key, usize)>,
    shelves: Mutex<HashMap<Key, Shelf>>,
    refills: Arc<Semaphore>,
    woken: Notify,
    claims: watch::Sender<usize>,
    metrics: Metrics,
}

/// A claim that is under way, until it is dropped.
pub(super) struct Claiming<'a>(&'a Pool);

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        self.0.claims.send_modify(|claims| *claims -= 1);
    }
}

impl Pool {
    pub(super) fn new(config: &Config, metrics: Metrics) -> Self {
        let wanted = config.pool.iter().map(|entry| {
            let key = Key {
                image: entry.image.clone().unwrap_or_else(|| config.image.clone()),
                size: entry.size,
                runtime: entry.runtime.clone().unwrap_or_else(|| config.runtime.clone()),
            };
            (key, entry.count)
        });
        Self {
            wanted: wanted.collect(),
            shelves: Mutex::default(),
            refills: Arc::new(Semaphore::new(config.refill_parallel.max(1))),
            woken: Notify::new(),
            claims: watch::channel(0).0,
            metrics,
        }
    }

    /// A session is about to get its sandbox: refills begin after it, as they take the same engine and cores.
    pub(super) fn begin_claim(&self) -> Claiming<'_> {
        self.claims.send_modify(|claims| *claims += 1);
        Claiming(self)
    }

    async fn quiet(&self) {
        let mut claims = self.claims.subscribe();
        let _ = timeout(QUIET_LIMIT, claims.wait_for(|claims| *claims == 0)).await;
    }

    /// Has the pool looked over soon.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Whether sandboxes of this kind are kept at all.
    pub(super) fn has_shelf(&self, key: &Key) -> bool {
        self.wanted.iter().any(|(wanted, count)| wanted == key && *count > 0)
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<Key, Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one that waits, the oldest first.
    pub(super) fn take(&self, key: &Key) -> Option<Sandbox> {
        let taken = self.shelves().get_mut(key)?.ready.pop_front();
        if taken.is_some() {
            self.count();
            self.wake();
        }
        taken
    }

    /// Takes all of them.
    pub(super) fn drain(&self) -> Vec<Sandbox> {
        let drained =
            self.shelves().values_mut().flat_map(|shelf| std::mem::take(&mut shelf.ready)).collect();
        self.count();
        drained
    }

    fn put(&self, key: &Key, sandbox: Sandbox) {
        if let Some(shelf) = self.shelves().get_mut(key) {
            shelf.ready.push_back(sandbox);
        }
        self.count();
    }

    /// Takes those out that `is_stale` names.
    fn weed(&self, key: &Key, is_stale: impl Fn(&Sandbox) -> bool) -> Vec<Sandbox> {
        let mut shelves = self.shelves();
        let Some(shelf) = shelves.get_mut(key) else { return Vec::new() };
        let (stale, ready) =
            std::mem::take(&mut shelf.ready).into_iter().partition(|sandbox| is_stale(sandbox));
        shelf.ready = ready;
        stale.into_iter().collect()
    }

    /// Books the creation of one, if one is missing and its kind has not just failed.
    fn book(&self, key: &Key, wanted: usize) -> bool {
        let mut shelves = self.shelves();
        let shelf = shelves.entry(key.clone()).or_default();
        let missing = shelf.ready.len() + shelf.being_made < wanted;
        let allowed = shelf.not_before.is_none_or(|at| Instant::now() >= at);
        if missing && allowed {
            shelf.being_made += 1;
        }
        drop(shelves);
        self.count();
        missing && allowed
    }

    /// A booked creation is over.
    fn made(&self, key: &Key, worked: bool) {
        self.book_end(key, worked);
        self.count();
    }

    fn book_end(&self, key: &Key, worked: bool) {
        let mut shelves = self.shelves();
        let Some(shelf) = shelves.get_mut(key) else { return };
        shelf.being_made = shelf.being_made.saturating_sub(1);
        if worked {
            shelf.failures = 0;
            shelf.not_before = None;
        } else {
            let pause = (BACKOFF * 2u32.saturating_pow(shelf.failures.min(5))).min(BACKOFF_MAX);
            shelf.failures += 1;
            shelf.not_before = Some(Instant::now() + pause);
        }
    }

    fn count(&self) {
        let shelves = self.shelves();
        for (key, _) in &self.wanted {
            let (ready, filling) =
                shelves.get(key).map_or((0, 0), |shelf| (shelf.ready.len(), shelf.being_made));
            let labels = [key.image.as_str(), key.size.as_str()];
            self.metrics.pool_size.with_label_values(&labels).set(ready as i64);
            self.metrics.pool_filling.with_label_values(&labels).set(filling as i64);
        }
    }
}

/// Keeps the shelves filled for as long as the worker lives.
pub(super) async fn keep(core: Arc<Core>) {
    let pool = &core.pool;
    if let Err(error) = core.driver.prepare(&core.config.image).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the agent's volume is made with the first sandbox"
        );
    }
    loop {
        for (key, wanted) in &pool.wanted {
            weed(&core, key).await;
            while pool.book(key, *wanted) {
                // Waiting for the permit here, not in the task, makes one refill at a time of what is missing now.
                let permit = tokio::select! {
                    () = core.stop.cancelled() => return,
                    permit = Arc::clone(&pool.refills).acquire_owned() => permit,
                };
                tokio::select! {
                    () = core.stop.cancelled() => return,
                    () = pool.quiet() => {}
                }
                let (core, key) = (Arc::clone(&core), key.clone());
                let tasks = core.tasks.clone();
                tasks.spawn(async move {
                    refill(&core, &key).await;
                    drop(permit);
                    core.pool.wake();
                });
            }
        }
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = pool.woken.notified() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

/// Discards what is gone, and what was made from an image whose name means another one by now.
async fn weed(core: &Arc<Core>, key: &Key) {
    let image = core.driver.resolve_image(&key.image).await.ok();
    let stale = core.pool.weed(key, |sandbox| {
        let other_image = image.as_ref().is_some_and(|image| image.id != sandbox.facts().image_id);
        sandbox.gone().is_some() || other_image
    });
    for sandbox in stale {
        release(core, &sandbox, WorkspaceFate::Remove);
    }
    core.pool.count();
}

async fn refill(core: &Arc<Core>, key: &Key) {
    let plan = Plan {
        image: key.image.clone(),
        resources: key.size.resources(),
        runtime: key.runtime.clone(),
        workspace: None,
    };
    match launch(core, plan).await {
        Ok(sandbox) => {
            core.pool.put(key, sandbox);
            core.pool.made(key, true);
            // Asked after it is there: a shutdown may have emptied the shelves a moment ago, and looks into them no more.
            if core.stop.is_cancelled() {
                for sandbox in core.pool.drain() {
                    release(core, &sandbox, WorkspaceFate::Remove);
                }
            }
        }
        Err(error) => {
            core.pool.made(key, false);
            tracing::warn!(
                image = key.image,
                size = key.size.as_str(),
                error = &error as &dyn std::error::Error,
                "the pool could not be filled"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refill_waits_for_claims_but_not_for_ever() {
        let metrics = Metrics::register(&prometheus::Registry::new()).expect("registers");
        let pool = Pool::new(&Config::default(), metrics);
        let began = tokio::time::Instant::now();
        pool.quiet().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody claims");
        let (first, second) = (pool.begin_claim(), pool.begin_claim());
        tokio::join!(pool.quiet(), async {
            tokio::time::sleep(QUIET_LIMIT / 4).await;
            drop(first);
            tokio::time::sleep(QUIET_LIMIT / 4).await;
            drop(second);
        });
        assert_eq!(began.elapsed(), QUIET_LIMIT / 2);
        let _claim = pool.begin_claim();
        pool.quiet().await;
        assert_eq!(began.elapsed(), QUIET_LIMIT * 3 / 2);
    }
}
