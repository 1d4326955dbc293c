//! Opens exchanges at the internal listeners of other processes, over one HTTP/2 connection to each.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use api::Trust;
use domain::Code;
use domain::exchange::{ExchangeError, Item, Opening};
use domain::limits::{EXCHANGE_BACKLOG, EXCHANGE_OPEN_MS, EXCHANGES_PER_CONNECTION};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::body::{BrokenOff, Receiving, Tell, sending};
use super::{KEEP_ALIVE, PATH, STREAM_WINDOW_BYTES, bearer};
use crate::config::Secret;

/// Time for a connection to come up.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Time for a worker to answer; it may itself wait for a sandbox.
const ANSWER_LIMIT: Duration = Duration::from_millis(EXCHANGE_OPEN_MS + 5_000);
/// Largest refusal.
const REFUSAL_BYTES: usize = 64 * 1024;
/// How long nothing more is warned of an address: whoever waits for its session asks five times a second.
const QUIET: Duration = Duration::from_secs(60);

type Body = BoxBody<bytes::Bytes, BrokenOff>;

/// See the module.
pub struct Client {
    key: Secret,
    trust: Option<Trust>,
    connections: Mutex<HashMap<String, SendRequest<Body>>>,
    unreached: Mutex<Unreached>,
}

/// Addresses that were not reached, and when that was last a warning.
#[derive(Debug, Default)]
struct Unreached(HashMap<String, Instant>);

impl Unreached {
    /// Whether it is news that an address is not reached.
    fn is_news(&mut self, address: &str, now: Instant) -> bool {
        self.0.retain(|_, warned| now.duration_since(*warned) < QUIET);
        let is_news = !self.0.contains_key(address);
        if is_news {
            self.0.insert(address.to_owned(), now);
        }
        is_news
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// A client that shows this key, over TLS to whom it trusts, or in plain.
    #[must_use]
    pub fn new(key: Secret, trust: Option<Trust>) -> Self {
        Self { key, trust, connections: Mutex::default(), unreached: Mutex::default() }
    }

    /// Opens an operation at the listener at `address`.
    ///
    /// # Errors
    /// What the worker refuses; [`Code::WorkerUnavailable`] when it cannot be reached.
    pub async fn open(&self, address: &str, opening: &Opening) -> Result<api::Duplex, ExchangeError> {
        let mut connection = self.connection(address).await?;
        let (to, items) = mpsc::channel(EXCHANGE_BACKLOG);
        // Half of a stream cannot be dropped alone: whoever stops listening resets it.
        let let_go = CancellationToken::new();
        let body = BoxBody::new(sending(vec![Item::message(opening)], items, let_go.clone()));
        let request = Request::post(format!("http://{address}{PATH}"))
            .header(hyper::header::AUTHORIZATION, bearer(&self.key))
            .body(body)
            .map_err(|error| self.unreachable(address, &error))?;
        connection.ready().await.map_err(|error| self.unreachable(address, &error))?;
        let answered = timeout(ANSWER_LIMIT, connection.send_request(request)).await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_canceled() => return Err(self.unreachable(address, &error)),
            Ok(Err(error)) => {
                tracing::debug!(address, %error, "an exchange was not answered");
                return Err(ExchangeError::broken_off());
            }
            Err(_) => return Err(ExchangeError::broken_off()),
        };
        if matches!(response.status(), StatusCode::OK | StatusCode::CONFLICT) {
            self.unreached().0.remove(address);
        }
        match response.status() {
            StatusCode::OK => {
                let (items, from) = mpsc::channel(EXCHANGE_BACKLOG);
                let receiving = Receiving::new(response.into_body());
                tokio::spawn(async move {
                    receiving.forward(items, Tell::Break).await;
                    let_go.cancel();
                });
                Ok(api::Duplex { to, from })
            }
            StatusCode::CONFLICT => {
                let body = Limited::new(response.into_body(), REFUSAL_BYTES).collect().await;
                let refusal = body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
                Err(refusal.unwrap_or_else(ExchangeError::broken_off))
            }
            StatusCode::UNAUTHORIZED => {
                tracing::error!(address, "the worker refuses internal.key; every process needs the same");
                let message = "The worker of the session does not accept this process.";
                Err(ExchangeError::new(Code::WorkerUnavailable, message))
            }
            status => Err(self.unreachable(address, &format!("an exchange was answered {status}"))),
        }
    }

    /// The connection to a process, made anew when there is none that works.
    async fn connection(&self, address: &str) -> Result<SendRequest<Body>, ExchangeError> {
        if let Some(connection) = self.locked().get(address).filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let sender = match timeout(CONNECT_LIMIT, self.connect(address)).await {
            Ok(Ok(sender)) => sender,
            Ok(Err(error)) => return Err(self.unreachable(address, &error)),
            Err(_) => return Err(self.unreachable(address, &"no connection in time")),
        };
        let mut connections = self.locked();
        connections.retain(|_, connection| !connection.is_closed());
        connections.insert(address.to_owned(), sender.clone());
        Ok(sender)
    }

    async fn connect(&self, address: &str) -> Result<SendRequest<Body>, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        let _ = stream.set_nodelay(true);
        match &self.trust {
            None => greet(stream).await.map_err(|error| error.to_string()),
            Some(trust) => {
                let host =
                    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
                let stream = trust.connect(host, stream).await.map_err(|error| error.to_string())?;
                greet(stream).await.map_err(|error| error.to_string())
            }
        }
    }

    /// A worker that is not reached, for whoever asks, and once a minute for the log.
    fn unreachable(&self, address: &str, error: &dyn std::fmt::Display) -> ExchangeError {
        if self.unreached().is_news(address, Instant::now()) {
            tracing::warn!(address, %error, "a worker is not reached");
        } else {
            tracing::debug!(address, %error, "a worker is still not reached");
        }
        let message = "The worker of the session cannot be reached at the moment.";
        ExchangeError::new(Code::WorkerUnavailable, message)
    }

    fn unreached(&self) -> std::sync::MutexGuard<'_, Unreached> {
        self.unreached.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<String, SendRequest<Body>>> {
        self.connections.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn greet(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> hyper::Result<SendRequest<Body>> {
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES * EXCHANGES_PER_CONNECTION)
        .handshake::<_, Body>(TokioIo::new(stream))
        .await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an internal connection ended");
        }
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_not_reached_is_news_once_a_minute() {
        let (mut unreached, start) = (Unreached::default(), Instant::now());
        assert!(unreached.is_news("one", start));
        assert!(!unreached.is_news("one", start + QUIET / 2));
        assert!(unreached.is_news("two", start + QUIET / 2), "another one is");
        assert!(unreached.is_news("one", start + QUIET));
        assert_eq!(unreached.0.len(), 2);
        unreached.is_news("one", start + QUIET * 3);
        assert_eq!(unreached.0.len(), 1, "who is not asked for is forgotten");
    }
}
