//! The internal listener of a process with a worker: HTTP/2 only, one path, one shared key, and TLS with certificates of both sides where
//! it is configured.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::{Duplex, Tls};
use bytes::Bytes;
use domain::exchange::{ExchangeError, Item, Opening};
use domain::limits::EXCHANGES_PER_CONNECTION;
use futures_util::future::BoxFuture;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http2::Builder;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::{BrokenOff, Receiving, Tell, sending};
use super::{KEEP_ALIVE, PATH, STREAM_WINDOW_BYTES, bearer};
use crate::config::Secret;

/// Connections of other processes; there are as many as API processes.
const CONNECTIONS: usize = 256;
/// Time for TLS, for the first request with the key, and for the opening to arrive once a request has begun: who has no key keeps no place.
const OPENING_LIMIT: Duration = Duration::from_secs(5);
/// Time that open exchanges get when the process stops.
const DRAIN: Duration = Duration::from_secs(2);

type Body = BoxBody<Bytes, BrokenOff>;

/// What the listener opens exchanges with.
pub trait Opens: Send + Sync + 'static {
    /// Opens an operation on a session of this process.
    fn open(&self, opening: Opening) -> BoxFuture<'_, Result<Duplex, ExchangeError>>;
}

/// Serves exchanges until `stop` is cancelled.
///
/// # Errors
/// Never at present; the listener outlives failed connections.
pub async fn serve(
    listener: TcpListener,
    key: Secret,
    tls: Option<Arc<Tls>>,
    opens: Arc<dyn Opens>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let expected: Arc<str> = bearer(&key).into();
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let (stream, permit) = match (accepted, Arc::clone(&room).try_acquire_owned()) {
            (Ok((stream, _)), Ok(permit)) => (stream, permit),
            (Ok((_, peer)), Err(_)) => {
                tracing::warn!(%peer, "too many internal connections");
                continue;
            }
            (Err(error), _) => {
                tracing::warn!(%error, "an internal connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (gate, opens) =
            (Gate { expected: Arc::clone(&expected), known: CancellationToken::new() }, Arc::clone(&opens));
        let (tls, stop, cut) = (tls.clone(), stop.clone(), cut.clone());
        connections.spawn(async move {
            tokio::select! {
                () = greet(stream, tls, gate.clone(), opens, stop) => {}
                () = gate.stranger() => tracing::warn!("an internal connection on which no key was shown is closed"),
                () = cut.cancelled() => {}
            }
            drop(permit);
        });
    }
    connections.close();
    if timeout(DRAIN, connections.wait()).await.is_err() {
        cut.cancel();
        connections.wait().await;
    }
    Ok(())
}

/// What a connection has to show, and whether it has.
#[derive(Clone)]
struct Gate {
    expected: Arc<str>,
    known: CancellationToken,
}

impl Gate {
    /// Whether a request shows the key.
    fn passes(&self, request: &Request<Incoming>) -> bool {
        let shown = request.headers().get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let passes = bool::from(shown.ct_eq(self.expected.as_bytes()));
        if passes {
            self.known.cancel();
        }
        passes
    }

    /// Returns when nobody has shown the key in time.
    async fn stranger(&self) {
        if timeout(OPENING_LIMIT, self.known.cancelled()).await.is_ok() {
            std::future::pending().await
        }
    }
}

async fn greet(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    gate: Gate,
    opens: Arc<dyn Opens>,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return connection(stream, gate, opens, stop).await };
    match tls.accept(stream).await {
        Ok(stream) => connection(stream, gate, opens, stop).await,
        Err(error) => tracing::warn!(%error, "an internal connection did not come to TLS"),
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    gate: Gate,
    opens: Arc<dyn Opens>,
    stop: CancellationToken,
) {
    let service = hyper::service::service_fn(move |request| {
        let (gate, opens) = (gate.clone(), Arc::clone(&opens));
        async move { Ok::<_, Infallible>(answer(request, &gate, opens.as_ref()).await) }
    });
    let connection = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .max_concurrent_streams(EXCHANGES_PER_CONNECTION)
        .max_header_list_size(16 * 1024)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES * EXCHANGES_PER_CONNECTION)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "an internal connection ended early");
    }
}

async fn answer(request: Request<Incoming>, gate: &Gate, opens: &dyn Opens) -> Response<Body> {
    if !gate.passes(&request) {
        tracing::warn!("an internal request without the key");
        return status(StatusCode::UNAUTHORIZED);
    }
    if request.method() != Method::POST || request.uri().path() != PATH {
        return status(StatusCode::NOT_FOUND);
    }
    let mut receiving = Receiving::new(request.into_body());
    let opening = match timeout(OPENING_LIMIT, receiving.next()).await {
        Ok(Some(Item::Message(opening))) => serde_json::from_value::<Opening>(opening),
        Ok(Some(Item::Data(_) | Item::End | Item::Failed(_)) | None) | Err(_) => {
            return status(StatusCode::BAD_REQUEST);
        }
    };
    let Ok(opening) = opening else {
        // An operation of a newer process.
        return status(StatusCode::NOT_IMPLEMENTED);
    };
    match opens.open(opening).await {
        Ok(Duplex { to, from }) => {
            tokio::spawn(receiving.forward(to, Tell::Nothing));
            Response::new(BoxBody::new(sending(Vec::new(), from, CancellationToken::new())))
        }
        Err(error) => {
            let body = Full::from(serde_json::to_vec(&error).unwrap_or_default());
            let mut response = Response::new(body.map_err(|never| match never {}).boxed());
            *response.status_mut() = StatusCode::CONFLICT;
            response
        }
    }
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Full::default().map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
}
