//! Whether this process can serve: what `/readyz` asks, on the API's listener and on that of the metrics.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use store::{SchemaFit, Store};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// How long a check may take.
const LIMIT: Duration = Duration::from_secs(3);

/// What is said of a check that is fine.
const FINE: &str = "ok";

/// An outcome that is fine, in a word, or why it is not.
type Check = dyn Fn() -> Pin<Box<dyn Future<Output = Result<&'static str, String>> + Send>> + Send + Sync;

/// Something that has to work before this process is ready (the container engine, say).
#[derive(Clone)]
pub struct ReadinessCheck {
    name: &'static str,
    check: Arc<Check>,
}

impl ReadinessCheck {
    /// A named check. Its error is for operators' logs and not shown to clients.
    pub fn new<F, R>(name: &'static str, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self::saying(name, move || {
            let checked = check();
            async move { checked.await.map(|()| FINE) }
        })
    }

    /// The same with a word of its own for a good outcome.
    fn saying<F, R>(name: &'static str, check: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<&'static str, String>> + Send + 'static,
    {
        Self { name, check: Arc::new(move || Box::pin(check())) }
    }

    async fn outcome(&self) -> &'static str {
        let outcome = timeout(LIMIT, (self.check)()).await;
        match outcome.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            Ok(word) => word,
            Err(reason) => {
                tracing::warn!(check = self.name, %reason, "not ready");
                "failed"
            }
        }
    }
}

/// Everything that has to work, and whether the process is asked to stop. Cheap to clone.
#[derive(Clone)]
pub struct Readiness {
    checks: Arc<[ReadinessCheck]>,
    /// What was found last. Anybody may ask, and finding it costs the database a few statements.
    found: Arc<Mutex<Option<Found>>>,
    shutdown: CancellationToken,
}

/// Each check's outcome, and when the last one was there.
type Found = (Instant, BTreeMap<&'static str, &'static str>);

/// How long an outcome holds for others who ask. Who asks while the checks run waits for them, so that a flood of questions neither
/// costs more than one nor keeps anybody waiting for longer than the checks take.
const HOLDS: Duration = Duration::from_millis(250);

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readiness").finish_non_exhaustive()
    }
}

impl Readiness {
    /// The database, its migrations, and what else this process needs. Not ready from the moment that `shutdown` is cancelled.
    #[must_use]
    pub fn new(store: &Store, others: Vec<ReadinessCheck>, shutdown: CancellationToken) -> Self {
        let (of_database, of_migrations) = (store.clone(), store.clone());
        let database = ReadinessCheck::new("database", move || {
            let store = of_database.clone();
            async move { store.ping().await.map_err(|error| error.to_string()) }
        });
        let migrations = ReadinessCheck::saying("migrations", move || {
            let store = of_migrations.clone();
            async move {
                let schema = store.schema().await.map_err(|error| error.to_string())?;
                match schema.fit() {
                    SchemaFit::Same => Ok(FINE),
                    SchemaFit::Newer => Ok("newer"),
                    SchemaFit::Missing => Err(format!("{} migrations are missing", schema.missing.len())),
                    SchemaFit::LeftBehind => Err("the schema needs a newer version".to_owned()),
                }
            }
        });
        let checks = [database, migrations].into_iter().chain(others).collect();
        Self { checks, found: Arc::default(), shutdown }
    }

    /// Each check's outcome, all asked at once: `ok`, `newer` for migrations, or `failed`.
    pub(crate) async fn outcomes(&self) -> BTreeMap<&'static str, &'static str> {
        // On a task of its own: who asks first and goes away does not make the next one begin again.
        let (checks, found) = (Arc::clone(&self.checks), Arc::clone(&self.found));
        let looked = tokio::spawn(async move {
            let mut found = found.lock().await;
            match &*found {
                Some((at, outcomes)) if at.elapsed() < HOLDS => outcomes.clone(),
                Some(_) | None => {
                    let asked = checks.iter().map(async |check| (check.name, check.outcome().await));
                    let outcomes: BTreeMap<_, _> =
                        futures_util::future::join_all(asked).await.into_iter().collect();
                    *found = Some((Instant::now(), outcomes.clone()));
                    outcomes
                }
            }
        });
        let mut outcomes = looked.await.unwrap_or_else(|_| BTreeMap::from([("checks", "failed")]));
        outcomes.insert("shutdown", if self.shutdown.is_cancelled() { "failed" } else { "ok" });
        outcomes
    }
}
