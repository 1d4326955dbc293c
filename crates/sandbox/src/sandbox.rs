//! A handle on one sandbox: its facts, its agent, and whether it still serves.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use domain::{Resources, SandboxId, SizeClass};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{AgentClient, Gone, Link, Workspace};

/// Where a sandbox came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It waited in the pool.
    Warm,
    /// It was made for this request.
    Cold,
    /// It was taken over from another worker.
    Adopted,
}

/// What is fixed for a sandbox's life.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Its id.
    pub sandbox_id: SandboxId,
    /// The engine's id of its container.
    pub container_id: String,
    /// Its workspace and the uid of its tools.
    pub workspace: Workspace,
    /// Ownership epoch under which this worker has it.
    pub epoch: u64,
    /// Image, as it was asked for.
    pub image: String,
    /// What the image was resolved to.
    pub image_id: String,
    /// Size class, unless the resources are its own.
    pub size: Option<SizeClass>,
    /// What it may use.
    pub resources: Resources,
    /// Container runtime.
    pub runtime: String,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) facts: Facts,
    pub(crate) origin: OnceLock<Origin>,
    pub(crate) link: Link,
    pub(crate) agent: AgentClient,
    pub(crate) signs: Arc<Signs>,
    /// It was given up: nobody watches it, and it is removed at most once.
    pub(crate) given_up: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.given_up.cancel();
    }
}

/// What is known about whether a sandbox lives, shared with the task that watches it.
#[derive(Debug)]
pub(crate) struct Signs {
    pub(crate) gone: watch::Sender<Option<Gone>>,
    /// Something hints that the container is worth a look.
    pub(crate) nudge: Notify,
    /// Somebody asked the engine to stop the container.
    pub(crate) killed: AtomicBool,
}

impl Signs {
    pub(crate) fn new() -> Self {
        Self { gone: watch::Sender::new(None), nudge: Notify::new(), killed: AtomicBool::new(false) }
    }
}

/// One running sandbox of this worker. Cheap to clone; dropping every clone closes the link and removes nothing.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub(crate) inner: Arc<Inner>,
}

impl Sandbox {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> SandboxId {
        self.inner.facts.sandbox_id
    }

    /// Everything that is fixed for its life.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.inner.facts
    }

    /// The engine's id of its container.
    #[must_use]
    pub fn container_id(&self) -> &str {
        &self.inner.facts.container_id
    }

    /// Its workspace, to make another sandbox over it later.
    #[must_use]
    pub fn workspace(&self) -> &Workspace {
        &self.inner.facts.workspace
    }

    /// Uid (and gid) of its tools.
    #[must_use]
    pub fn tool_uid(&self) -> u32 {
        self.inner.facts.workspace.tool_uid
    }

    /// Ownership epoch under which this worker has it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.inner.facts.epoch
    }

    /// Where it came from.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.inner.origin.get().copied().unwrap_or(Origin::Cold)
    }

    /// Its agent's verbs.
    #[must_use]
    pub fn agent(&self) -> &AgentClient {
        &self.inner.agent
    }

    /// Boot id of its agent.
    #[must_use]
    pub fn boot_id(&self) -> Option<String> {
        self.inner.link.boot_id()
    }

    /// Why it serves no more, if that is known already.
    #[must_use]
    pub fn gone(&self) -> Option<Gone> {
        self.inner.signs.gone.borrow().clone()
    }

    /// Waits until it serves no more, and says why. Never resolves for a sandbox that this worker released.
    pub async fn wait_gone(&self) -> Gone {
        let mut gone = self.inner.signs.gone.subscribe();
        loop {
            if let Some(gone) = gone.borrow_and_update().clone() {
                return gone;
            }
            if gone.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
