//! The worker's end of a sandbox's link: it listens on a socket (or opens streams to a relay beside the agent), the agent
//! dials and redials, the newest connection counts.
//!
//! # Design notes
//!
//! *The path says who speaks.* Each sandbox has a folder and a socket of its own, mounted into that container
//! alone; nothing that a peer says about itself is needed to know which sandbox it is.
//!
//! *No path length.* A unix socket's path may have 108 bytes. The socket is bound through the folder's
//! descriptor, so that a deep checkout works like `/run/toolhost`.
//!
//! *Never unlinked on drop.* A worker that takes the sandbox over binds its own socket under the same name; an
//! old worker that goes away later must not remove it. The folder is removed with the sandbox.

mod client;
mod connection;
mod dial;
mod exec;
mod file_watch;
mod handshake;
mod inbox;
mod upload;
mod writer;

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use client::{AgentClient, FileContent};
pub use dial::Dial;
pub use exec::{ExecEvent, ExecStream};
pub use file_watch::{FileWatch, WatchEvent};
pub use upload::Upload;

use crate::{LinkError, Metrics};
use connection::Connection;
use handshake::{Greeted, Refused};

/// Connections of one sandbox that may be greeting at the same time.
const GREETING: usize = 4;

/// What the worker tells each agent that dials.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Ownership epoch.
    pub epoch: u64,
    /// Uid (and gid) of the tools.
    pub tool_uid: u32,
    /// Environment of every command, before the command's own.
    pub env: BTreeMap<String, String>,
    /// Shells that wait pre-started.
    pub warm_shells: u32,
    /// Boot id of the agent that the operations were started on, when it is known already. Another one means
    /// that the journal is gone.
    pub boot_id: Option<String>,
}

/// Whether an agent can be asked.
#[derive(Debug, Clone)]
pub(crate) enum LinkState {
    /// None is connected; one may dial any moment.
    Waiting,
    /// One is connected.
    Connected(Arc<Connection>),
    /// It is over.
    Closed(Closed),
}

/// Why a link is over for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// This worker closed it.
    ByUs,
    /// Another worker has the sandbox.
    Fenced,
    /// The agent started anew.
    JournalLost,
    /// No protocol version is spoken by both sides.
    Version,
}

impl Closed {
    fn error(self) -> LinkError {
        match self {
            Self::ByUs => LinkError::Closed,
            Self::Fenced => LinkError::Fenced,
            Self::JournalLost => LinkError::JournalLost,
            Self::Version => LinkError::Protocol("no common protocol version"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    terms: Terms,
    state: watch::Sender<LinkState>,
    boot_id: watch::Sender<Option<String>>,
    agent_version: watch::Sender<Option<String>>,
    stop: CancellationToken,
    metrics: Metrics,
}

impl Shared {
    fn new(terms: Terms, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            boot_id: watch::Sender::new(terms.boot_id.clone()),
            agent_version: watch::Sender::new(None),
            terms,
            state: watch::Sender::new(LinkState::Waiting),
            stop: CancellationToken::new(),
            metrics,
        })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    /// The present connection, waited for if there is none.
    async fn connection(&self, limit: Duration) -> Result<Arc<Connection>, LinkError> {
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| match state {
            LinkState::Waiting => false,
            LinkState::Connected(connection) => !connection.is_closed(),
            LinkState::Closed(_) => true,
        });
        match tokio::time::timeout(limit, ready).await {
            Ok(Ok(state)) => match &*state {
                LinkState::Connected(connection) => Ok(Arc::clone(connection)),
                LinkState::Closed(closed) => Err(closed.error()),
                LinkState::Waiting => Err(LinkError::Disconnected),
            },
            Ok(Err(_)) => Err(LinkError::Closed),
            Err(_) => Err(LinkError::Disconnected),
        }
    }

    fn close(&self, closed: Closed) {
        self.stop.cancel();
        let before = self.state.send_replace(LinkState::Closed(closed));
        match before {
            LinkState::Connected(connection) => connection.close(),
            LinkState::Closed(first) => {
                self.state.send_replace(LinkState::Closed(first));
            }
            LinkState::Waiting => {}
        }
    }
}

/// One sandbox's link: a listening socket, or streams to a relay. Dropping it closes the connection; the agent keeps its operations and goes on dialling.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
}

impl Link {
    /// Listens in the folder `dir`, in the place of whoever listened there before. Call it on a runtime.
    ///
    /// # Errors
    /// When the folder is not there or the socket cannot be made.
    pub fn bind(dir: &Path, terms: Terms, metrics: Metrics) -> io::Result<Self> {
        let listener = listen(dir)?;
        let shared = Shared::new(terms, metrics);
        tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared })
    }

    /// Opens byte streams to the agent's relay, one after the other, for as long as the link lasts. Call it on a
    /// runtime.
    #[must_use]
    pub fn over_relay(dial: Dial, terms: Terms, metrics: Metrics) -> Self {
        let shared = Shared::new(terms, metrics);
        tokio::spawn(dial::keep(dial, Arc::clone(&shared)));
        Self { shared }
    }

    /// The verbs over this link.
    #[must_use]
    pub fn agent(&self) -> AgentClient {
        AgentClient::new(Arc::clone(&self.shared))
    }

    /// Waits until an agent is connected.
    ///
    /// # Errors
    /// [`LinkError::Disconnected`] when none came in time, or why the link is over.
    pub async fn connected(&self, limit: Duration) -> Result<(), LinkError> {
        self.shared.connection(limit).await.map(drop)
    }

    /// Boot id of the agent, once one has connected.
    #[must_use]
    pub fn boot_id(&self) -> Option<String> {
        self.shared.boot_id.borrow().clone()
    }

    /// Build version of the agent, once one has connected.
    #[must_use]
    pub fn agent_version(&self) -> Option<String> {
        self.shared.agent_version.borrow().clone()
    }

    /// Closes the link for good.
    pub fn close(&self) {
        self.shared.close(Closed::ByUs);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<LinkState> {
        self.shared.subscribe()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

fn listen(dir: &Path) -> io::Result<UnixListener> {
    let folder = File::open(dir)?;
    let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(protocol::LINK_SOCKET);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&path)?;
    // The agent is uid 0 without the right to override permissions, and this process need not be root.
    std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    Ok(listener)
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let greeting = Arc::new(tokio::sync::Semaphore::new(GREETING));
    loop {
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else {
            // Out of descriptors, most likely: the agent dials again.
            tokio::time::sleep(Duration::from_millis(protocol::REDIAL_INTERVAL_MS)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&greeting).try_acquire_owned() else { continue };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let greeted = handshake::greet_socket(socket, &shared).await;
            drop(permit);
            serve(greeted, &shared).await;
        });
    }
}

/// Carries one connection from its greeting to its end. True when it was greeted.
async fn serve<R, W>(greeted: Result<Greeted<R, W>, Refused>, shared: &Shared) -> bool
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let greeted = match greeted {
        Ok(greeted) => greeted,
        Err(Refused::Over(closed)) => {
            shared.close(closed);
            return false;
        }
        Err(Refused::Peer(why)) => {
            tracing::warn!(why, "an agent's connection was refused");
            return false;
        }
    };
    let (connection, driven) = Connection::new(greeted.version);
    if !become_current(shared, &connection) {
        return true;
    }
    if greeted.version < protocol::VERSION {
        tracing::info!(version = greeted.version, "an agent speaks an earlier version of the protocol");
    }
    let connected = shared.metrics.agents_connected.with_label_values(&[&greeted.version.to_string()]);
    connected.inc();
    let result = connection::run(&connection, driven, greeted.reader, greeted.writer, greeted.decoder).await;
    connected.dec();
    if let Err(LinkError::Protocol(why)) = result {
        shared.metrics.error("protocol");
        tracing::warn!(why, "an agent broke the protocol");
    }
    shared.state.send_if_modified(|state| match state {
        LinkState::Connected(current) if Arc::ptr_eq(current, &connection) => {
            *state = LinkState::Waiting;
            true
        }
        LinkState::Connected(_) | LinkState::Waiting | LinkState::Closed(_) => false,
    });
    true
}

/// The newest connection takes the place of the one before, whose streams end.
fn become_current(shared: &Shared, connection: &Arc<Connection>) -> bool {
    let mut before = None;
    let current = shared.state.send_if_modified(|state| match state {
        LinkState::Closed(_) => false,
        LinkState::Waiting | LinkState::Connected(_) => {
            before = Some(std::mem::replace(state, LinkState::Connected(Arc::clone(connection))));
            true
        }
    });
    if let Some(LinkState::Connected(old)) = before {
        old.close();
    }
    current
}
