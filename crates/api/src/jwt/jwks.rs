//! Keys that an issuer publishes (RFC 7517): read in the background, kept when the issuer is down, never waited for long.
//!
//! # Design notes
//!
//! A request reads what is there. Only one whose key is unknown asks for another look, at most once in `least_interval` for all requests
//! together, and waits a moment for its outcome; so neither an issuer that is slow nor a flood of made-up key names holds anybody up. Keys that were
//! read once hold until another set is read, however long the issuer is down: to end trust, the operator takes the issuer out.
//!
//! A token whose key is not among them may be a good one as long as no set was read after it came: then it is refused (or, before the first set,
//! told to come back), and not counted as a wrong credential of its address.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jsonwebtoken::jwk::Jwk;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::config::{IssuerConfig, IssuerError, JwksConfig};
use super::key::Key;
use crate::json;
use crate::outgoing::{AskError, Endpoint};

/// Most keys of a set.
const SET_KEYS: usize = 64;
/// Largest set, in bytes.
const SET_BYTES: usize = 256 * 1024;
/// Longest that reading takes.
const READING: Duration = Duration::from_secs(5);
/// Longest that a request waits for a look that it asked for.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// The published keys of one issuer.
pub(crate) struct Jwks {
    config: JwksConfig,
    source: Endpoint,
    keys: RwLock<Arc<Vec<Key>>>,
    asked: Notify,
    looks: watch::Sender<Looks>,
}

/// How often the set was read, or tried to be.
#[derive(Debug, Clone, Copy, Default)]
struct Looks {
    begun: u64,
    ended: u64,
    /// Those that found a set.
    read: u64,
    last_ended: Option<Instant>,
}

/// Why a set was not read.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("it is no set of keys")]
    NoSet,
    #[error("it took too long")]
    Slow,
}

impl Jwks {
    pub(crate) fn new(issuer: &IssuerConfig, config: &JwksConfig) -> Result<Self, IssuerError> {
        Ok(Self {
            config: config.clone(),
            source: config.endpoint(issuer)?,
            keys: RwLock::default(),
            asked: Notify::new(),
            looks: watch::Sender::new(Looks::default()),
        })
    }

    /// What is known now.
    pub(crate) fn keys(&self) -> Arc<Vec<Key>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there was ever a set to be read.
    pub(crate) fn was_read(&self) -> bool {
        self.looks.borrow().read > 0
    }

    /// Asks for another look, unless there was one a moment ago. Whether a set was read since.
    pub(crate) async fn look_again(&self) -> bool {
        let mut looks = self.looks.subscribe();
        let now = *looks.borrow_and_update();
        let lately = now.last_ended.is_some_and(|at| at.elapsed() < self.config.least_interval);
        if now.begun == now.ended {
            if lately {
                return false;
            }
            self.asked.notify_one();
        }
        let ended = looks.wait_for(|looks| looks.ended > now.ended);
        timeout(PATIENCE, ended).await.is_ok_and(|seen| seen.is_ok_and(|looks| looks.read > now.read))
    }

    /// Reads the set now and then, and when somebody asks, for ever.
    pub(crate) async fn keep_fresh(&self) {
        loop {
            self.looks.send_modify(|looks| looks.begun += 1);
            let outcome = timeout(READING, self.fetch()).await.unwrap_or(Err(Unread::Slow));
            let was_read = outcome.is_ok();
            let pause = match outcome {
                Ok(keys) => {
                    *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
                    self.config.refresh.saturating_sub(self.config.least_interval)
                }
                Err(error) => {
                    let kept = self.keys().len();
                    tracing::warn!(url = self.config.url, %error, kept, "the keys of a token issuer were not read");
                    Duration::ZERO
                }
            };
            self.looks.send_modify(|looks| {
                looks.ended += 1;
                looks.read += u64::from(was_read);
                looks.last_ended = Some(Instant::now());
            });
            sleep(self.config.least_interval).await;
            tokio::select! {
                () = sleep(pause) => {}
                () = self.asked.notified() => {}
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<Key>, Unread> {
        let body = self.source.get(SET_BYTES).await?;
        read_set(&body, &self.config).ok_or(Unread::NoSet)
    }
}

/// The keys of a set that are for us. One that is not readable does not spoil the others; a set without any is none.
fn read_set(body: &[u8], config: &JwksConfig) -> Option<Vec<Key>> {
    let Ok(Value::Object(mut set)) = json::parse(body) else { return None };
    let Some(Value::Array(keys)) = set.remove("keys") else { return None };
    let keys: Vec<_> = keys
        .into_iter()
        .take(SET_KEYS)
        .filter_map(|key| serde_json::from_value::<Jwk>(key).ok())
        .filter_map(|jwk| Key::published(&jwk, &config.algorithms))
        .collect();
    (!keys.is_empty()).then_some(keys)
}

impl std::fmt::Debug for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jwks").field("url", &self.config.url).finish_non_exhaustive()
    }
}
