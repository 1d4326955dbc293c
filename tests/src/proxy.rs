//! An engine that can be made to hang or to go away, without touching the real one. The sandbox room's own tests have it too.

use std::path::PathBuf;

use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// How the engine behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything goes through.
    Forward,
    /// Connections are taken, and nothing is ever said on them.
    Hang,
    /// Connections end, old and new.
    Down,
}

/// Stands before the engine for as long as it lives.
#[derive(Debug)]
pub struct Proxy {
    mode: watch::Sender<Mode>,
    socket: PathBuf,
    _place: tempfile::TempDir,
}

impl Proxy {
    /// Begins to carry what is said to the engine.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn start() -> Self {
        let place = tempfile::tempdir().expect("a folder can be made");
        let socket = place.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).expect("a socket can be made");
        let mode = watch::Sender::new(Mode::Forward);
        let modes = mode.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, modes.clone()));
            }
        });
        Self { mode, socket, _place: place }
    }

    /// Its address, for `sandbox.engine`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// From now on, for connections that there are too.
    pub fn mode(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn carry(mut client: UnixStream, mut modes: watch::Receiver<Mode>) {
    let real = std::env::var("DOCKER_HOST").unwrap_or_default();
    let real = real.strip_prefix("unix://").unwrap_or("/var/run/docker.sock").to_owned();
    let Ok(mut engine) = UnixStream::connect(real).await else { return };
    loop {
        let mode = *modes.borrow_and_update();
        match mode {
            Mode::Down => return,
            Mode::Forward => {
                // A cut copy may lose what it has read: a connection that hung is of no use afterwards.
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut engine) => return,
                    _ = modes.changed() => {}
                }
            }
            Mode::Hang => {
                let _ = modes.changed().await;
                return;
            }
        }
    }
}
