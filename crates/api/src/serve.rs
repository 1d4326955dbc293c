//! The server loop: connections with limits on everything that a client may take its time for.
//!
//! # Design notes
//!
//! `axum::serve` sets no timeouts. Here a request's head has to arrive in time (`header_read_timeout`, and before that the first bytes,
//! by which the HTTP version is told), and a client has to take what is sent to it: a socket that takes nothing for longer than a
//! stream's stall time is closed, because a body that nobody polls cannot notice that by itself. A body that does not arrive is the
//! extractor's to notice. A connection whose reader's credential is over is cut, as what it has not taken yet cannot be taken back.
//! A connection without a request is closed after the time for a head, whichever version it speaks.

mod guard;
mod idle;
mod scrapers;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Version;
use domain::limits;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use self::guard::Guarded;
use self::idle::Activity;
pub use self::scrapers::serve_metrics;
use crate::http::PeerAddress;
use crate::metrics::Counted;
use crate::service::vigil::Carrier;
use crate::state::ApiState;

/// Serves the API until `shutdown` is cancelled and the linger time is over, then lets open requests and streams end within the drain time.
///
/// # Errors
/// When the API cannot be put together, or the listener itself fails for good.
pub async fn serve(
    listener: TcpListener,
    state: ApiState,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let router = crate::http::router(state.clone()).map_err(std::io::Error::other)?;
    let room = Arc::new(Semaphore::new(state.config.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    let background = TaskTracker::new();
    state.issuers.keep_fresh(&background, &shutdown);
    let closing = closing(shutdown, state.config.linger);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            () = closing.cancelled() => break,
        };
        let Some((stream, peer, permit)) = accepted else { continue };
        let (router, state) = (router.clone(), state.clone());
        let (closing, cut) = (closing.clone(), cut.clone());
        connections.spawn(async move {
            let _counted = Counted::up(&state.metrics.connections);
            tokio::select! {
                () = greet(stream, peer, router, &state, closing) => {}
                () = cut.cancelled() => {}
            }
            drop(permit);
        });
    }
    drop(listener);
    background.close();
    background.wait().await;
    connections.close();
    if timeout(state.config.drain, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "connections are cut at the end of the drain time");
        cut.cancel();
        connections.wait().await;
    }
    Ok(())
}

/// When connections are taken no more: some time after `shutdown`, so that whoever shares requests out has seen that this process
/// is not ready, and sends it none that would be refused.
fn closing(shutdown: CancellationToken, linger: Duration) -> CancellationToken {
    let closing = CancellationToken::new();
    let later = closing.clone();
    tokio::spawn(async move {
        shutdown.cancelled().await;
        sleep(linger).await;
        later.cancel();
    });
    closing
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, IpAddr, tokio::sync::OwnedSemaphorePermit)> {
    let permit = room.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            // Small events must not wait for an acknowledgement.
            let _ = stream.set_nodelay(true);
            Some((stream, peer.ip(), permit))
        }
        Err(error) => {
            // Out of descriptors, usually: they come back when connections end.
            tracing::warn!(%error, "a connection could not be accepted");
            sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

/// Greets a connection as its listener is configured, then serves it.
async fn greet(
    stream: TcpStream,
    peer: IpAddr,
    router: Router,
    state: &ApiState,
    closing: CancellationToken,
) {
    let Some(tls) = &state.config.tls else {
        return connection(stream, peer, router, state, closing).await;
    };
    match timeout(state.config.header_timeout, tls.accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, peer, router, state, closing).await,
        Ok(Err(error)) => tracing::debug!(%error, "a connection did not come to TLS"),
        Err(_) => tracing::debug!("a connection took too long for TLS"),
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: IpAddr,
    router: Router,
    state: &ApiState,
    closing: CancellationToken,
) {
    let config = &state.config;
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_headers(100)
        .max_buf_size(64 * 1024);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .max_concurrent_streams(limits::HTTP2_STREAMS)
        .max_header_list_size(32 * 1024)
        .max_send_buf_size(64 * 1024);
    let activity = Activity::default();
    let counted = activity.clone();
    let carrier = Carrier::default();
    let cut = carrier.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let open = counted.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(PeerAddress(peer));
        if request.version() < Version::HTTP_2 {
            request.extensions_mut().insert(carrier.clone());
        }
        let answered = router.clone().oneshot(request);
        async move { answered.await.map(|response| open.held_by(response)) }
    });
    let io = TokioIo::new(Guarded::new(stream, config.header_timeout, config.streams.stall));
    let connection = builder.serve_connection_with_upgrades(io, service);
    tokio::pin!(connection);
    let served = async {
        tokio::select! {
            served = connection.as_mut() => served,
            () = async { tokio::select! { () = closing.cancelled() => {}, () = activity.idle(config.header_timeout) => {} } } => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let served = tokio::select! {
        served = served => served,
        () = cut.is_cut() => return,
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}
