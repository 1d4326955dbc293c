//! The listener for metrics and health: HTTP/1.1 for scrapers and probes. One that reads slowly or not at all takes a place until its time is
//! over and holds up nothing else, the end of the process neither.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use domain::limits;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::guard::Guarded;

/// Time for the head of a request, and between two scrapes on one connection.
const HEAD: Duration = Duration::from_secs(90);
/// Time in which a scraper has to take something of what is sent to it.
const STALL: Duration = Duration::from_secs(30);
/// Time that an answer under way gets when everything else of the process has ended.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Serves metrics and health until `ended` is cancelled.
///
/// # Errors
/// When the listener itself fails for good.
pub async fn serve_metrics(
    listener: TcpListener,
    router: Router,
    ended: CancellationToken,
) -> std::io::Result<()> {
    let room = Arc::new(Semaphore::new(limits::METRICS_CONNECTIONS));
    let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
    loop {
        let accepted = tokio::select! {
            accepted = super::accept(&listener, &room) => accepted,
            () = ended.cancelled() => break,
        };
        let Some((stream, _, permit)) = accepted else { continue };
        let (router, ended, cut) = (router.clone(), ended.clone(), cut.clone());
        connections.spawn(async move {
            tokio::select! {
                () = scraper(stream, router, ended) => {}
                () = cut.cancelled() => {}
            }
            drop(permit);
        });
    }
    connections.close();
    if timeout(LAST_ANSWER, connections.wait()).await.is_err() {
        cut.cancel();
        connections.wait().await;
    }
    Ok(())
}

async fn scraper(stream: TcpStream, router: Router, ended: CancellationToken) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        router.clone().oneshot(request.map(Body::new))
    });
    let io = TokioIo::new(Guarded::new(stream, HEAD, STALL));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(io, service);
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = ended.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection for metrics ended early");
    }
}
